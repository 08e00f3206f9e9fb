#pragma once

// The C entry points of libfullshard.so: all that the torch-free executable knows of the engine.
// It finds them with dlsym, so that commands which need no tensors never load libtorch.

extern "C" {

/// Trains as the effective configuration says: JSON as config::to_json writes it, resolved, with
/// job.nproc_per_node and job.threads_per_rank above 0. With RANK in the environment this process
/// is one rank of WORLD_SIZE; otherwise it is the whole job, with its ranks as threads when
/// job.nproc_per_node is above 1. Returns the process exit code and lets no exception out: what
/// went wrong has been told through base::report_error.
__attribute__((visibility("default"))) int fullshard_engine_train(
    const char* effective_config_json);

/// Makes the measurement that a bench::StepSpec in JSON describes, in this process, or as one of
/// its ranks with RANK in the environment. Rank 0 prints a bench::StepResult as a line of JSON.
/// Returns the exit code, as above.
__attribute__((visibility("default"))) int fullshard_engine_measure_step(const char* spec_json);

/// The same for a bench::CollectivesSpec, as one of its ranks: RANK is in the environment. Rank 0
/// prints the bench::CollectiveTimes.
__attribute__((visibility("default"))) int fullshard_engine_measure_collectives(
    const char* spec_json);
}
