#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cli/command_line.h"
#include "cli/parsing.h"

namespace fullshard::cli {

/// `fullshard bench ...`: adds its commands to `parent`, and says what was meant once that has
/// parsed. Not movable: CLI11 keeps references to its members.
class BenchParser {
 public:
  explicit BenchParser(CLI::App& parent);
  BenchParser(const BenchParser&) = delete;
  BenchParser& operator=(const BenchParser&) = delete;

  bool chosen() const;

  /// Throws base::Error(kUsage). `command_line` is kept for the report.
  Command result(int argc, const char* const* argv) const;

 private:
  void add_step();
  void add_collectives();
  static void refuse_extras(const CLI::App& app, const char* help);
  bool override_sizes(bench::StepShape& shape) const;
  BenchStepCommand step_command(int argc, const char* const* argv) const;

  CLI::App* bench_;
  CLI::App* step_ = nullptr;
  CLI::App* measure_ = nullptr;
  CLI::App* collectives_ = nullptr;
  CLI::App* measure_collectives_ = nullptr;
  bool help_ = false;
  bool step_help_ = false;
  bool one_rank_ = false;
  bool no_memory_ = false;
  std::map<std::string, std::optional<std::int64_t>> sizes_;  ///< by the names of shape_sizes()
  bench::StepBenchOptions options_;
  std::string measured_spec_;
  bool collectives_help_ = false;
  bench::CollectivesBenchOptions collectives_options_;
};

}  // namespace fullshard::cli
