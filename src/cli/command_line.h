#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "fullshard/bench/collectives_bench.h"
#include "fullshard/bench/step_bench.h"
#include "fullshard/config/load.h"
#include "fullshard/planner/candidate.h"
#include "fullshard/planner/input.h"

namespace fullshard::cli {

/// Print this and be done.
struct ShowText {
  std::string text;
};

/// `fullshard train`, as it was typed.
struct TrainCommand {
  std::string config_file;  ///< empty = none
  std::vector<config::Flag> flags;
  bool print_config = false;
};

/// `fullshard bench step`.
struct BenchStepCommand {
  bench::StepBenchOptions options;
};

/// `fullshard bench measure-step SPEC`: what `bench step` starts, not for users.
struct MeasureStepCommand {
  std::string spec;  ///< a bench::StepSpec in JSON
};

/// `fullshard bench collectives`.
struct BenchCollectivesCommand {
  bench::CollectivesBenchOptions options;
};

/// `fullshard bench measure-collectives SPEC`: what it starts, not for users.
struct MeasureCollectivesCommand {
  std::string spec;  ///< a bench::CollectivesSpec in JSON
};

/// `fullshard plan`, as it was typed.
struct PlanCommand {
  std::string config_file;  ///< empty = none
  std::vector<config::Flag> flags;
  planner::Input input;  ///< less what the file and the flags say
  planner::Choices choices;
  int rows = 12;     ///< ways to train that are shown
  std::string json;  ///< empty = no file
};

/// `fullshard doctor trace FILES...`.
struct DoctorTraceCommand {
  std::vector<std::filesystem::path> files;  ///< or folders of them
  bool json = false;
};

using Command = std::variant<ShowText, TrainCommand, BenchStepCommand, MeasureStepCommand,
                             BenchCollectivesCommand, MeasureCollectivesCommand, PlanCommand,
                             DoctorTraceCommand>;

/// Understands a command line. Throws base::Error(kUsage) that names the argument which cannot be
/// understood and the nearest known one. Values of flags are not looked at yet.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace fullshard::cli
