#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fullshard/data/token_source.h"

namespace fullshard::data {

/// What a model is trained on: targets are the tokens one position later.
struct Batch {
  at::Tensor tokens;   ///< [batch, seq] int64
  at::Tensor targets;  ///< [batch, seq] int64; kIgnoredTarget where nothing is to be learnt

  /// Targets that are to be learnt.
  std::int64_t learnt() const;
};

/// Where a pass over the data stands.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t sample = 0;  ///< samples of the epoch already used, over all ranks

  friend bool operator==(const Cursor&, const Cursor&) = default;
};

/// A contiguous share of something divided among ranks.
struct Share {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

/// Part `index` of `count` of a run of `total`: parts differ in size by at most one and join
/// without gap. total * count must fit 63 bits.
Share share_of(std::int64_t total, std::int64_t index, std::int64_t count);

/// The samples of a training run in an order that depends on the seed alone: not on ranks, batch
/// size or what was read before. A sample is a window of seq_len + 1 tokens; windows start seq_len
/// tokens apart, so that every token but the first of the text is a target once an epoch (a
/// remainder shorter than a window is left out). Immutable: any thread.
class Windows {
 public:
  /// Throws kInvalidArgument when not even one window fits.
  Windows(std::shared_ptr<const TokenSource> source, std::int64_t seq_len, std::uint64_t seed);

  std::int64_t per_epoch() const { return per_epoch_; }
  std::int64_t seq_len() const { return seq_len_; }

  /// Which window, counted through the text, sample `sample` of an epoch is.
  std::int64_t window_of(Cursor cursor) const;

  /// Samples since the start of epoch 0, and back.
  std::int64_t position(Cursor cursor) const { return cursor.epoch * per_epoch_ + cursor.sample; }
  Cursor cursor(std::int64_t position) const {
    return {position / per_epoch_, position % per_epoch_};
  }

  /// The `count` samples from position `begin` on, one a row; they may cross into the next epoch.
  Batch batch(std::int64_t begin, std::int64_t count) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  std::int64_t seq_len_;
  std::int64_t per_epoch_;
  std::uint64_t seed_;
};

/// The windows with these numbers, one a row.
Batch read_windows(const TokenSource& source, std::int64_t seq_len,
                   std::span<const std::int64_t> windows);

/// How many windows of seq_len + 1 tokens, seq_len apart, fit.
std::int64_t count_windows(const TokenSource& source, std::int64_t seq_len);

}  // namespace fullshard::data
