#include "cli/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/engine_library.h"
#include "fullshard/launcher/launch.h"

namespace fullshard::cli {
namespace {

struct MeasuredRun {
  const char* engine;   // the engine's function
  const char* command;  // the word that leads here again in each rank
  std::string spec;
  int processes;
  int threads;  // of each
};

int measure(const MeasuredRun& run) {
  const bool is_rank = std::getenv("RANK") != nullptr;
  if (!is_rank && run.processes > 1) {
    return launcher::launch({.nproc = run.processes,
                             .command = {own_path(), "bench", run.command, run.spec},
                             .threads_per_rank = run.threads});
  }
  // OpenMP reads it when the engine's library is loaded.
  ::setenv("OMP_NUM_THREADS", fmt::format("{}", run.threads).c_str(), 1);
  return run_in_engine(run.engine, run.spec);
}

}  // namespace

int bench_step(const BenchStepCommand& command) {
  return bench::run_step_bench(command.options, {.redraw = ::isatty(STDERR_FILENO) != 0});
}

int measure_step(const MeasureStepCommand& command) {
  const bench::StepSpec spec = bench::parse_step_spec(command.spec);
  bench::validate(spec);
  return measure({.engine = "fullshard_engine_measure_step",
                  .command = "measure-step",
                  .spec = command.spec,
                  .processes = bench::process_count(spec),
                  .threads = bench::threads_per_process(spec)});
}

int bench_collectives(const BenchCollectivesCommand& command) {
  return bench::run_collectives_bench(command.options, {.redraw = ::isatty(STDERR_FILENO) != 0});
}

int measure_collectives(const MeasureCollectivesCommand& command) {
  const bench::CollectivesSpec spec = bench::parse_collectives_spec(command.spec);
  bench::validate(spec);
  return measure({.engine = "fullshard_engine_measure_collectives",
                  .command = "measure-collectives",
                  .spec = command.spec,
                  .processes = spec.ranks,
                  .threads = 1});
}

}  // namespace fullshard::cli
