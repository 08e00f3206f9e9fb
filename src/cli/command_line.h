#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "fullshard/bench/collectives_bench.h"
#include "fullshard/bench/step_bench.h"
#include "fullshard/config/load.h"

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

/// `fullshard doctor trace FILES...`.
struct DoctorTraceCommand {
  std::vector<std::filesystem::path> files;  ///< or folders of them
  bool json = false;
};

using Command =
    std::variant<ShowText, TrainCommand, BenchStepCommand, MeasureStepCommand,
                 BenchCollectivesCommand, MeasureCollectivesCommand, DoctorTraceCommand>;

/// Understands a command line. Throws base::Error(kUsage) that names the argument which cannot be
/// understood and the nearest known one. Values of flags are not looked at yet.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace fullshard::cli
