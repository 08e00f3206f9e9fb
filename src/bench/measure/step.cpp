#include "fullshard/bench/measure/step.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <span>

#include "bench/measure/trainee.h"
#include "fullshard/base/check.h"
#include "fullshard/base/deadline.h"
#include "fullshard/bench/memory_gate.h"
#include "fullshard/bench/statistics.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::bench::measure {
namespace {

constexpr base::Duration kGateTimeout = std::chrono::minutes(5);

/// Seconds of one step on one rank.
struct StepTimes {
  double forward = 0;
  double backward = 0;
  double optimizer = 0;
  double whole = 0;
  double exposed = 0;
  double reduction = 0;
  double loss = 0;  ///< not a time, but averaged over ranks with them
};

/// Every process draws the global batch and takes its rows, so that all ways of training see the
/// same.
class Batches {
 public:
  Batches(const StepSpec& spec, const Subject& subject, int rank)
      : generator_(at::detail::createCPUGenerator(/*seed_val=*/0)),
        draw_(subject.draw),
        global_rows_(spec.ranks * spec.shape.batch),
        rows_(spec.sharded ? spec.shape.batch : global_rows_),
        first_(rank * rows_) {}

  Batch next() { return draw_(global_rows_, generator_).rows(first_, rows_); }

  std::int64_t rows_per_step() const { return global_rows_; }

 private:
  at::Generator generator_;
  decltype(Subject::draw) draw_;
  std::int64_t global_rows_;
  std::int64_t rows_;
  std::int64_t first_;
};

/// Splits the time since it was made.
class Laps {
 public:
  double next() {
    const auto now = base::Clock::now();
    const double lap = base::seconds(now - last_);
    last_ = now;
    return lap;
  }
  double total() const { return base::seconds(base::Clock::now() - start_); }

 private:
  base::Clock::time_point start_ = base::Clock::now();
  base::Clock::time_point last_ = start_;
};

class Measurement {
 public:
  Measurement(const StepSpec& spec, comm::World& world)
      : spec_(spec),
        world_(world),
        trainee_(make_trainee(spec, world.mesh())),
        batches_(spec, trainee_->subject(), world.rank()) {}

  StepResult run() {
    for (int step = 0; step < spec_.steps; ++step) {
      if (step == 1) {
        trainee_->reset_peaks();
        warm_ = trainee_->counters();
      }
      times_.push_back(take_step(step));
    }
    return result();
  }

 private:
  StepTimes take_step(int step) {
    const Batch batch = batches_.next();
    const shard::Counters before = trainee_->counters();
    const comm::OpTag tag{.unit = "", .step = step};
    StepTimes times;
    world_.group().barrier(tag);
    Laps laps;
    const at::Tensor loss = trainee_->loss(batch);
    times.forward = laps.next();
    loss.backward();
    times.backward = laps.next();
    if (step == 0) grad_norm_ = trainee_->grad_norm();
    trainee_->update();
    times.optimizer = laps.next();
    world_.group().barrier(tag);  // the step ends when the slowest rank has ended it
    times.whole = laps.total();
    const shard::Counters after = trainee_->counters();
    times.exposed = after.exposed_comm_seconds - before.exposed_comm_seconds;
    times.reduction = after.reduction_seconds - before.reduction_seconds;
    times.loss = loss.item<double>();
    return times;
  }

  /// One figure of each step, combined over ranks.
  std::vector<double> over_ranks(double StepTimes::*field, comm::ReduceOp op) {
    std::vector<double> values;
    for (const StepTimes& times : times_) values.push_back(times.*field);
    combine(values, op);
    return values;
  }

  void combine(std::vector<double>& values, comm::ReduceOp op) {
    const auto count = static_cast<std::int64_t>(values.size());
    world_.group().all_reduce({values.data(), count, base::DType::kFloat64}, op, {}).wait();
  }

  static double measured_median(const std::vector<double>& steps) {
    return median(std::span(steps).subspan(1));
  }

  std::optional<StepCounters> counters() {
    if (!spec_.sharded) return std::nullopt;
    const shard::Counters mine = trainee_->counters();
    std::array<std::int64_t, 2> peaks = {mine.peak_unsharded_bytes,
                                         mine.peak_unreduced_gradient_bytes};
    world_.group()
        .all_reduce({peaks.data(), 2, base::DType::kInt64}, comm::ReduceOp::kMax, {})
        .wait();
    return StepCounters{
        .exposed_seconds = measured_median(over_ranks(&StepTimes::exposed, comm::ReduceOp::kMax)),
        .reduction_seconds =
            measured_median(over_ranks(&StepTimes::reduction, comm::ReduceOp::kMax)),
        .peak_unsharded_bytes = peaks[0],
        .peak_unreduced_gradient_bytes = peaks[1],
        .owned_bytes = by_rank(mine.parameter_shard_bytes),
        .units = exposure_by_unit(mine)};
  }

  std::vector<std::int64_t> by_rank(std::int64_t value) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(world_.size()));
    world_.group()
        .all_gather({&value, 1, base::DType::kInt64},
                    {values.data(), world_.size(), base::DType::kInt64}, {}, {})
        .wait();
    return values;
  }

  std::vector<UnitExposure> exposure_by_unit(const shard::Counters& last) {
    std::vector<double> seconds;
    for (std::size_t u = 0; u < last.units.size(); ++u) {
      seconds.push_back(last.units[u].exposed_seconds - warm_.units[u].exposed_seconds);
    }
    combine(seconds, comm::ReduceOp::kMean);
    std::vector<UnitExposure> units;
    for (std::size_t u = 0; u < last.units.size(); ++u) {
      units.push_back({.name = last.units[u].name, .seconds = seconds[u] / (spec_.steps - 1)});
    }
    return units;
  }

  double counted_per_step() const {
    return static_cast<double>(batches_.rows_per_step() * counted_per_row(spec_.shape));
  }

  StepResult result() {
    const auto mean = [this](double StepTimes::*field) {
      return over_ranks(field, comm::ReduceOp::kMean);
    };
    const std::vector<double> whole = over_ranks(&StepTimes::whole, comm::ReduceOp::kMax);
    const std::vector<double> losses = mean(&StepTimes::loss);
    const double step = measured_median(whole);
    return {.step_seconds = step,
            .tokens_per_second = counted_per_step() / step,
            .loss = losses.back(),
            .forward_seconds = measured_median(mean(&StepTimes::forward)),
            .backward_seconds = measured_median(mean(&StepTimes::backward)),
            .optimizer_seconds = measured_median(mean(&StepTimes::optimizer)),
            .details = StepDetails{.losses = losses,
                                   .step_seconds = whole,
                                   .grad_norm = grad_norm_,
                                   .parameters = trainee_->subject().parameters,
                                   .torch = TORCH_VERSION,
                                   .counters = counters()}};
  }

  const StepSpec& spec_;
  comm::World& world_;
  std::unique_ptr<Trainee> trainee_;
  Batches batches_;
  std::vector<StepTimes> times_;
  shard::Counters warm_;  // after the step that warms up
  double grad_norm_ = 0;
};

}  // namespace

StepResult measure_step(const StepSpec& spec, comm::World& world) {
  validate(spec);
  FULLSHARD_CHECK_EQ(world.size(), process_count(spec));
  at::globalContext().setFlushDenormal(true);  // threads made later inherit it
  at::set_num_threads(threads_per_process(spec));
  comm::set_reduction_threads(threads_per_process(spec));
  if (!spec.memory_gate.empty()) stop_at_memory_gate(spec.memory_gate, kGateTimeout);
  return Measurement(spec, world).run();
}

}  // namespace fullshard::bench::measure
