#include <cstdio>
#include <cstdlib>

#include "engine/rank.h"
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

}  // namespace
}  // namespace fullshard::engine

int fullshard_engine_measure_step(const char* spec_json) {
  try {
    return fullshard::engine::measure_step(spec_json);
  } catch (...) {
    return fullshard::engine::report_current_exception();
  }
}
