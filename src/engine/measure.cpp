#include <cstdio>
#include <cstdlib>

#include "engine/rank.h"
#include "fullshard/bench/measure/collectives.h"
#include "fullshard/bench/measure/step.h"
#include "fullshard/comm/init.h"
#include "fullshard/engine/entry.h"

namespace fullshard::engine {
namespace {

int measure_step(const char* spec_json) {
  const bench::StepSpec spec = bench::parse_step_spec(spec_json);
  const bool is_rank = std::getenv("RANK") != nullptr;
  return run_as_rank(is_rank ? comm::init() : comm::single_rank(), [&](comm::World& world) {
    const bench::StepResult result = bench::measure::measure_step(spec, world);
    if (world.rank() == 0) std::puts(bench::to_json(result).c_str());
    std::fflush(stdout);
    return 0;
  });
}

int measure_collectives(const char* spec_json) {
  const bench::CollectivesSpec spec = bench::parse_collectives_spec(spec_json);
  comm::CommOptions options;
  options.backend = spec.backend == "gloo" ? comm::BackendChoice::kGloo : comm::BackendChoice::kShm;
  return run_as_rank(comm::init(options), [&](comm::World& world) {
    const auto times = bench::measure::measure_collectives(spec, world);
    if (world.rank() == 0) std::puts(bench::to_json(times).c_str());
    std::fflush(stdout);
    return 0;
  });
}

}  // namespace
}  // namespace fullshard::engine

int fullshard_engine_measure_step(const char* spec_json) {
  try {
    return fullshard::engine::measure_step(spec_json);
  } catch (...) {
    return fullshard::engine::report_current_exception();
  }
}

int fullshard_engine_measure_collectives(const char* spec_json) {
  try {
    return fullshard::engine::measure_collectives(spec_json);
  } catch (...) {
    return fullshard::engine::report_current_exception();
  }
}
