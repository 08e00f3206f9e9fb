#include "fullshard/bench/measure/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "fullshard/base/check.h"
#include "fullshard/base/deadline.h"
#include "fullshard/base/error.h"
#include "fullshard/bench/statistics.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::bench::measure {
namespace {

using comm::Buffer;
using comm::ConstBuffer;

constexpr base::DType kType = base::DType::kFloat32;
constexpr double kLongEnough = 0.3;  // seconds for one operation at one size
constexpr int kFewest = 3;
constexpr int kMost = 2000;

// One operation at one size. The whole has `count` elements, of which each rank owns an equal part.
class Operation {
 public:
  Operation(comm::Group& group, std::string name, std::int64_t bytes)
      : group_(group),
        name_(std::move(name)),
        part_(std::max<std::int64_t>(bytes / 4 / group_.size(), 1)),
        count_(part_ * group_.size()),
        whole_(static_cast<std::size_t>(count_), 1.0F),
        other_(static_cast<std::size_t>(count_), 2.0F) {
    if (name_ != "gather_in_place" && name_ != "reduce_in_place") return;
    const auto row_bytes = static_cast<std::size_t>(count_) * sizeof(float);
    const int rows = name_ == "reduce_in_place" ? group_.size() : 1;
    segment_ = group_.allocate_shared(row_bytes * static_cast<std::size_t>(rows), "a benchmark");
    board_ = group_.allocate_signals(1, "a benchmark");
    if (name_ == "gather_in_place") {
      std::fill_n(row(0) + group_.rank() * part_, part_, 1.0F);
    } else {
      std::fill_n(row(group_.rank()), count_, 1.0F);
    }
  }

  std::function<void()> body() {
    if (name_ == "copy") {
      return [this] { std::memcpy(other_.data(), whole_.data(), whole_.size() * sizeof(float)); };
    }
    if (name_ == "barrier") return [this] { group_.barrier({}); };
    if (name_ == "gather_in_place") return [this] { meet(); };
    if (name_ == "reduce_in_place") return [this] { reduce_in_place(); };
    if (name_ == "all_gather") return [this] { group_.all_gather(part(), whole(), {}, {}).wait(); };
    if (name_ == "all_reduce") {
      return [this] { group_.all_reduce(whole(), comm::ReduceOp::kMean, {}).wait(); };
    }
    if (name_ == "reduce_scatter") {
      return
          [this] { group_.reduce_scatter(whole(), part(), comm::ReduceOp::kMean, {}, {}).wait(); };
    }
    FULLSHARD_CHECK_EQ(name_, std::string("broadcast"));
    return [this] { group_.broadcast(whole(), 0, {}).wait(); };
  }

  // Everything here is made of ones.
  void check() const {
    const float* result = name_ == "gather_in_place" ? row(0) : whole_.data();
    const bool in_part = name_ == "copy" || name_ == "reduce_in_place" || name_ == "reduce_scatter";
    if (in_part) result = other_.data();
    const std::int64_t elements = in_part && name_ != "copy" ? part_ : count_;
    if (std::all_of(result, result + elements, [](float value) { return value == 1.0F; })) return;
    throw base::Error(base::ErrorCode::kInternal,
                      fmt::format("rank {}: {} of {} elements gave a wrong result", group_.rank(),
                                  name_, count_));
  }

 private:
  Buffer whole() { return {whole_.data(), count_, kType}; }
  Buffer part() {
    return {name_ == "all_gather" ? whole_.data() + group_.rank() * part_ : other_.data(), part_,
            kType};
  }
  float* row(int rank) const { return reinterpret_cast<float*>(segment_->data()) + rank * count_; }

  void meet() {
    board_->post(0, ++round_, "barrier", {});
    board_->wait(0, round_, "meeting", {});
  }

  void reduce_in_place() {
    meet();  // every rank's gradients are there
    std::vector<const void*> parts;
    for (int rank = 0; rank < group_.size(); ++rank) {
      parts.push_back(row(rank) + group_.rank() * part_);
    }
    comm::reduce_parts(parts, other_.data(), part_, kType, comm::ReduceOp::kMean);
  }

  comm::Group& group_;
  std::string name_;
  std::int64_t part_;
  std::int64_t count_;
  std::vector<float> whole_;
  std::vector<float> other_;
  std::unique_ptr<comm::SharedSegment> segment_;
  std::unique_ptr<comm::SignalBoard> board_;
  std::uint64_t round_ = 0;
};

// Small operations are timed many at once.
double seconds_of(comm::Group& group, const std::function<void()>& body, int times) {
  group.barrier({});
  const auto begin = base::Clock::now();
  for (int i = 0; i < times; ++i) body();
  double seconds = base::seconds(base::Clock::now() - begin);
  group.all_reduce({&seconds, 1, base::DType::kFloat64}, comm::ReduceOp::kMax, {}).wait();
  return seconds / times;
}

CollectiveTime measure(comm::Group& group, const std::string& name, std::int64_t bytes) {
  Operation operation(group, name, bytes);
  const auto body = operation.body();
  seconds_of(group, body, 2);  // touches all memory
  operation.check();
  const double once = std::max(seconds_of(group, body, kFewest), 1e-9);
  const double fit = kLongEnough / once / kFewest;
  const int batch = static_cast<int>(std::clamp<double>(fit / 10, 1, kMost));
  std::vector<double> times;
  for (double spent = 0; spent < kLongEnough || times.size() < kFewest;) {
    times.push_back(seconds_of(group, body, batch));
    spent += times.back() * batch;
  }
  return {name, has_size(name) ? bytes : 0, median(times)};
}

}  // namespace

std::vector<CollectiveTime> measure_collectives(const CollectivesSpec& spec, comm::World& world) {
  validate(spec);
  FULLSHARD_CHECK_EQ(world.size(), spec.ranks);
  const std::vector<std::string> operations =
      spec.operations.empty() ? collective_operations() : spec.operations;
  std::vector<CollectiveTime> times;
  for (const std::string& name : operations) {
    if (!has_operation(spec.backend, name)) continue;
    for (const std::int64_t bytes : spec.sizes) {
      times.push_back(measure(world.group(), name, bytes));
      if (!has_size(name)) break;
    }
  }
  return times;
}

}  // namespace fullshard::bench::measure
