#pragma once

#include <functional>
#include <string>

#include "fullshard/base/error.h"
#include "fullshard/planner/assessment.h"

namespace fullshard::planner::testing {

/// The message of the error that `call` throws, "no error" where it throws none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error.what();
  }
  return "no error";
}

/// Two blocks of width 8 with 2 heads, vocabulary 16: all sizes are multiples of 64 bytes.
inline ModelShape small_model() {
  return {.name = "small", .layers = 2, .dim = 16, .heads = 2, .vocab = 16, .seq = 4};
}

inline Job small_job(int hosts = 1, int ranks = 2) {
  Job job{.model = small_model()};
  job.machines.hosts = hosts;
  job.machines.ranks_per_host = ranks;
  job.machines.library_bytes = 0;
  job.clips = false;
  return job;
}

/// What `fullshard bench step --shape` trains, at two ranks.
inline Job bench_job(const char* model, std::int64_t batch) {
  Job job{.model = named_model(model), .batch = batch};
  job.machines.ranks_per_host = 2;
  job.clips = false;
  return job;
}

}  // namespace fullshard::planner::testing
