#include "trainer/step_log.h"

#include <fmt/format.h>

#include <cmath>

#include "trainer/process_memory.h"
#include "trainer/progress_bar.h"
#include "trainer/text.h"

namespace fullshard::trainer {
namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

std::string memory(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return fmt::format("{:.2f}GiB({:.1f}%)", value / kGibibyte,
                     100 * value / static_cast<double>(machine_memory_bytes()));
}

}  // namespace

StepLog::StepLog(Console& console, std::int64_t log_freq, std::int64_t total_steps)
    : console_(console), log_freq_(log_freq), total_steps_(total_steps) {}

std::string StepLog::line(const StepReport& report) const {
  const char* green = console_.has_colour() ? "\x1b[32m" : "";
  const char* plain = console_.has_colour() ? "\x1b[0m" : "";
  std::string text = fmt::format(
      "step: {:2}  {}loss: {:.4f}{}  grad_norm: {:.4f}  memory: {}  tps: {}  mfu: {:.1f}%",
      report.step, green, report.loss, plain, report.grad_norm, memory(report.peak_rss_bytes),
      grouped(std::llround(static_cast<double>(tokens_) / seconds_)), 100 * used_ / seconds_);
  if (report.validation_loss) {
    text += fmt::format("\nvalidate step: {:2}  {}loss: {:.4f}{}", report.step, green,
                        *report.validation_loss, plain);
  }
  return text + "\n";
}

void StepLog::step(const StepReport& report) {
  tokens_ += report.tokens;
  seconds_ += report.step_seconds;
  used_ += report.step_seconds * report.mfu;
  const bool show = report.step == 1 || report.step % log_freq_ == 0 ||
                    report.step == total_steps_ || report.validation_loss.has_value();
  if (show) {
    console_.print(line(report));
    tokens_ = 0;
    seconds_ = 0;
    used_ = 0;
  }
  if (!console_.has_status_line()) return;
  console_.status(progress_bar({.done = report.step,
                                .total = total_steps_,
                                .seconds = base::seconds(base::Clock::now() - start_),
                                .loss = report.loss},
                               console_.columns(), console_.has_colour()));
}

}  // namespace fullshard::trainer
