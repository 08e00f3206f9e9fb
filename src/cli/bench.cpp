#include "cli/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/engine_library.h"
#include "fullshard/launcher/launch.h"

namespace fullshard::cli {

int bench_step(const BenchStepCommand& command) {
  return bench::run_step_bench(command.options, {.redraw = ::isatty(STDERR_FILENO) != 0});
}

int measure_step(const MeasureStepCommand& command) {
  const bench::StepSpec spec = bench::parse_step_spec(command.spec);
  bench::validate(spec);
  const bool is_rank = std::getenv("RANK") != nullptr;
  if (!is_rank && bench::process_count(spec) > 1) {
    return launcher::launch({.nproc = bench::process_count(spec),
                             .command = {own_path(), "bench", "measure-step", command.spec},
                             .threads_per_rank = bench::threads_per_process(spec)});
  }
  // OpenMP reads it when the engine's library is loaded.
  ::setenv("OMP_NUM_THREADS", fmt::format("{}", bench::threads_per_process(spec)).c_str(), 1);
  return run_in_engine("fullshard_engine_measure_step", command.spec);
}

}  // namespace fullshard::cli
