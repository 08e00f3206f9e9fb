#include "cli/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "fullshard/base/error.h"
#include "fullshard/config/load.h"
#include "fullshard/planner/report.h"

namespace fullshard::cli {
namespace {

planner::Input input_of(const PlanCommand& command) {
  planner::Input input = command.input;
  if (!command.config_file.empty()) config::apply_toml_file(input.config, command.config_file);
  config::apply_flags(input.config, command.flags);
  input.is_configured = !command.config_file.empty() || !command.flags.empty();
  return input;
}

void write(const std::string& path, const std::string& contents) {
  std::ofstream file(path);
  file << contents;
  file.close();
  if (!file) throw base::Error(base::ErrorCode::kFile, fmt::format("cannot write {}", path));
}

}  // namespace

int plan(const PlanCommand& command) {
  const planner::SettledJob settled = planner::settle(input_of(command));
  const planner::Plan plan = planner::make_plan(settled.job, command.choices);
  std::fputs(planner::to_text(settled, plan, command.rows).c_str(), stdout);
  if (!command.json.empty()) write(command.json, planner::to_json(settled, plan));
  if (plan.fits()) return 0;
  std::fflush(stdout);
  throw base::Error(base::ErrorCode::kInvalidArgument, planner::why_nothing_fits(plan));
}

}  // namespace fullshard::cli
