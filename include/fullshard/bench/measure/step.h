#pragma once

#include "fullshard/bench/step_result.h"
#include "fullshard/bench/step_spec.h"
#include "fullshard/comm/world.h"

namespace fullshard::bench::measure {

/// Trains `spec.steps` steps as the spec says and measures all but the first. Every rank of `world`
/// calls it, which must have as many ranks as process_count(spec); all get the same result. Sets
/// the number of threads and the default generator's seed of this process.
///
/// Plain and sharded training start from the same values and see the same data: every rank draws
/// the whole global batch and takes its rows. Both step with optim::AdamW, the plain one over whole
/// parameters; gradients are not clipped.
StepResult measure_step(const StepSpec& spec, comm::World& world);

}  // namespace fullshard::bench::measure
