#include "trainer/json_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "fullshard/base/error.h"

namespace fullshard::trainer {
namespace {

[[noreturn]] void fail(const std::string& path, const char* action) {
  throw base::Error(base::ErrorCode::kFile,
                    fmt::format("metrics.jsonl \"{}\" cannot be {}: {}", path, action,
                                std::generic_category().message(errno)));
}

}  // namespace

JsonLines::JsonLines(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  errno = 0;
  file_.open(path_, std::ios::trunc);
  if (!file_) fail(path_, "opened for writing");
}

void JsonLines::write(const StepReport& report) {
  if (path_.empty()) return;
  errno = 0;
  file_ << to_json(report) << std::endl;
  if (!file_) fail(path_, "written");
}

std::string to_json(const StepReport& report) {
  nlohmann::ordered_json object = {
      {"step", report.step},
      {"loss", report.loss},
      {"grad_norm", report.grad_norm},
      {"lr", report.lr},
      {"tokens", report.tokens},
      {"tokens_per_second", report.tokens_per_second()},
      {"mfu", report.mfu},
      {"step_seconds", report.step_seconds},
      {"data_seconds", report.data_seconds},
      {"compute_seconds", report.compute_seconds},
      {"exposed_comm_seconds", report.exposed_comm_seconds},
      {"exposed_by_unit", report.exposed_by_unit},
      {"optimizer_seconds", report.optimizer_seconds},
      {"peak_unsharded_bytes", report.peak_unsharded_bytes},
      {"peak_rss_bytes", report.peak_rss_bytes},
      {"all_gathers", report.all_gathers},
      {"all_gather_bytes", report.all_gather_bytes},
      {"reduce_scatters", report.reduce_scatters},
      {"reduce_scatter_bytes", report.reduce_scatter_bytes},
      {"bytes_between_hosts", report.bytes_between_hosts},
      {"live_unsharded_bytes", report.live_unsharded_bytes},
      {"gradient_bytes", report.gradient_bytes},
      {"peak_unreduced_gradient_bytes", report.peak_unreduced_gradient_bytes},
      {"staging_bytes", report.staging_bytes},
      {"optimizer_state_bytes", report.optimizer_state_bytes},
  };
  if (report.validation_loss) object["validation_loss"] = *report.validation_loss;
  return object.dump();
}

}  // namespace fullshard::trainer
