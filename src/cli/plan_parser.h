#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/field_flags.h"
#include "cli/parsing.h"

namespace fullshard::cli {

/// `fullshard plan ...`: adds the command to `parent`, and says what was meant once that has
/// parsed. Not movable: CLI11 keeps references to its members.
class PlanParser {
 public:
  explicit PlanParser(CLI::App& parent);
  PlanParser(const PlanParser&) = delete;
  PlanParser& operator=(const PlanParser&) = delete;

  bool chosen() const;

  /// Throws base::Error(kUsage).
  Command result() const;

 private:
  void add_model();
  void add_machines();
  void add_choices();
  void refuse_extras() const;
  planner::Choices choices() const;

  void set_rates(planner::Input& input) const;

  /// A number that CLI11 hands over as text: its own complaints know integers only.
  struct Rate {
    const char* flag;
    std::optional<double> planner::Input::*field;
    std::string text = {};
  };

  CLI::App& app_;
  FieldFlags fields_;
  bool help_ = false;
  PlanCommand command_;
  std::array<Rate, 4> rates_ = {{{"--flops", &planner::Input::gflops},
                                 {"--host-bandwidth", &planner::Input::host_bandwidth},
                                 {"--network-bandwidth", &planner::Input::network_bandwidth},
                                 {"--network-latency", &planner::Input::network_latency}}};
  std::vector<std::string> strategies_, units_, atoms_;
  std::string recompute_ = "auto";
};

}  // namespace fullshard::cli
