#pragma once

#include <cstdint>
#include <memory>

#include "fullshard/data/windows.h"

namespace fullshard::data {

struct ValidationOptions {
  std::int64_t seq_len = 1;
  std::int64_t max_samples = 0;  ///< over all ranks; 0: every window of the text
  std::int64_t batch_size = 1;   ///< rows a rank runs at once, at most
  int rank = 0;
  int world = 1;
};

/// Fixed windows spread evenly over the validation text, every one on exactly one rank: shares may
/// differ by one sample, and the set does not depend on the world size. Immutable: any thread.
class ValidationSet {
 public:
  /// Throws kInvalidArgument when not even one window fits.
  ValidationSet(std::shared_ptr<const TokenSource> source, ValidationOptions options);

  std::int64_t global_samples() const { return global_samples_; }
  std::int64_t local_samples() const { return share_.size(); }

  /// How many batches every rank runs: the same number on all, so that the collectives inside a
  /// sharded forward match.
  std::int64_t rounds() const { return rounds_; }

  /// Batch `round` of this rank. It may have no row (then its mean loss is not a number, but the
  /// sum is 0): a rank that has run out still runs the model.
  Batch batch(std::int64_t round) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  ValidationOptions options_;
  std::int64_t windows_;
  std::int64_t global_samples_;
  Share share_;
  std::int64_t rounds_;
};

}  // namespace fullshard::data
