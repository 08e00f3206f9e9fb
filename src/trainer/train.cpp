#include "fullshard/trainer/train.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <memory>

#include "fullshard/base/deadline.h"
#include "fullshard/comm/reduce.h"
#include "fullshard/data/validation.h"
#include "fullshard/shard/fully_shard.h"
#include "trainer/banner.h"
#include "trainer/console.h"
#include "trainer/generation.h"
#include "trainer/json_lines.h"
#include "trainer/peak_flops.h"
#include "trainer/run_totals.h"
#include "trainer/setup.h"
#include "trainer/step_log.h"
#include "trainer/train_step.h"
#include "trainer/training_text.h"
#include "trainer/validation.h"

namespace fullshard::trainer {
namespace {

bool wants_status_line(const config::TrainConfig& config, const RunContext& context) {
  if (config.metrics.progress == config::Toggle::kAuto) return context.terminal;
  return config.metrics.progress == config::Toggle::kOn;
}

/// What a rank may show: only rank 0 shows anything.
RunContext visible_context(const RunContext& context, int rank) {
  RunContext visible = context;
  if (rank != 0) visible.out = nullptr;
  return visible;
}

/// One run on one rank, from the loading of the text to the generated one.
class Run {
 public:
  Run(const config::TrainConfig& config, comm::World& world, const RunContext& context)
      : config_(config),
        world_(world),
        context_(visible_context(context, world.rank())),
        console_(context_, wants_status_line(config, context)),
        json_(world.rank() == 0 ? config.metrics.jsonl : ""),
        text_(load_training_text(config)),
        model_(make_model(config)),
        sharded_(shard::fully_shard(model_, mesh_of(world, config), shard_options(config))),
        step_(config, world, model_, sharded_, text_.train) {
    if (text_.validation) {
      validation_ = std::make_unique<data::ValidationSet>(text_.validation,
                                                          validation_options(config, world));
    }
  }

  TrainResult run() {
    peak_flops_ = measure_peak_flops(world_.group(), config_.training.dtype);
    console_.print(banner(config_, world_, sharded_, text_, peak_flops_));
    take_steps();
    if (result_.stop_signal == 0) generate();
    console_.print(summary(result_, totals_, config_.training.steps));
    return result_;
  }

 private:
  void take_steps() {
    StepLog log(console_, config_.metrics.log_freq, config_.training.steps);
    const auto start = base::Clock::now();
    while (result_.steps < config_.training.steps && result_.stop_signal == 0) {
      StepReport report = take_step();
      if (result_.stop_signal == 0) validate_after(report);
      json_.write(report);
      log.step(report);
    }
    totals_.seconds = base::seconds(base::Clock::now() - start);
    console_.end_status();
  }

  StepReport take_step() {
    const int signal = context_.stop_signal ? context_.stop_signal() : 0;
    StepOutcome outcome = step_.run(result_.steps + 1, signal);
    StepReport& report = outcome.report;
    report.mfu = report.tokens_per_second() *
                 models::flops_per_token(model_->options(), config_.training.seq_len) / peak_flops_;
    result_.steps = report.step;
    result_.stop_signal = outcome.stop_signal;
    result_.losses.push_back(report.loss);
    result_.grad_norms.push_back(report.grad_norm);
    totals_.add(report);
    return report;
  }

  bool validates_after(std::int64_t step) const {
    if (!validation_) return false;
    const std::int64_t freq = config_.validation.freq;
    return step == config_.training.steps || (freq > 0 && step % freq == 0);
  }

  void validate_after(StepReport& report) {
    if (!validates_after(report.step)) return;
    const ValidationOutcome outcome =
        validate(model_, *validation_, world_.group(), context_.stop_signal);
    result_.stop_signal = outcome.stop_signal;
    if (!outcome.loss) return;
    report.validation_loss = outcome.loss;
    result_.validation_loss = outcome.loss;
  }

  void generate() {
    if (config_.generation.bytes == 0) return;
    Generated generated = generate_text(model_, config_, world_.group(), context_.stop_signal);
    result_.generated = std::move(generated.text);
    result_.stop_signal = generated.stop_signal;
    console_.print(fmt::format("{}{}\n", config_.generation.prompt, printable(result_.generated)));
  }

  const config::TrainConfig& config_;
  comm::World& world_;
  const RunContext context_;
  Console console_;
  JsonLines json_;
  const TrainingText text_;
  models::Gpt model_;
  const shard::ShardedModule sharded_;
  TrainStep step_;
  std::unique_ptr<data::ValidationSet> validation_;
  double peak_flops_ = 0;
  TrainResult result_;
  RunTotals totals_;
};

}  // namespace

TrainResult train(const config::TrainConfig& config, comm::World& world,
                  const RunContext& context) {
  if (config.job.threads_per_rank > 0) at::set_num_threads(config.job.threads_per_rank);
  comm::set_reduction_threads(config.comm.threads > 0 ? config.comm.threads
                                                      : at::get_num_threads());
  return Run(config, world, context).run();
}

}  // namespace fullshard::trainer
