#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/random_case.h"

namespace fullshard::fuzz {

/// What a run leaves behind.
struct Outcome {
  shard::StateDict parameters;
  std::vector<double> norms;           ///< before clipping, one a step
  std::int64_t bytes_above_limit = 0;  ///< most that were gathered at a time
};

/// Trains the case's model without sharding: the mean of what the ranks would do.
Outcome train_unsharded(const Case& run);

/// Trains it sharded, ranks as threads; one outcome a rank. Throws what a rank threw.
std::vector<Outcome> train_sharded(const Case& run);

/// What differs between them by more than 1e-10, in words; empty when nothing does.
std::string difference(const Case& run, const Outcome& actual, const Outcome& expected);

}  // namespace fullshard::fuzz
