#include "fullshard/data/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::data {
namespace {

void validate(const ValidationOptions& options) {
  FULLSHARD_CHECK(options.world >= 1 && options.rank >= 0 && options.rank < options.world);
  if (options.batch_size >= 1 && options.max_samples >= 0) return;
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format(
          "validation: batch_size must be at least 1 and max_samples at least 0, not {} and {}",
          options.batch_size, options.max_samples));
}

}  // namespace

ValidationSet::ValidationSet(std::shared_ptr<const TokenSource> source, ValidationOptions options)
    : source_(std::move(source)), options_(options) {
  validate(options_);
  windows_ = count_windows(*source_, options_.seq_len);
  global_samples_ = options_.max_samples == 0 ? windows_ : std::min(windows_, options_.max_samples);
  share_ = share_of(global_samples_, options_.rank, options_.world);
  const std::int64_t largest_share = (global_samples_ + options_.world - 1) / options_.world;
  rounds_ = (largest_share + options_.batch_size - 1) / options_.batch_size;
}

Batch ValidationSet::batch(std::int64_t round) const {
  FULLSHARD_CHECK(round >= 0 && round < rounds_);
  const Share rows = share_of(share_.size(), round, rounds_);
  std::vector<std::int64_t> windows;
  for (std::int64_t i = share_.begin + rows.begin; i < share_.begin + rows.end; ++i) {
    windows.push_back(share_of(windows_, i, global_samples_).begin);
  }
  return read_windows(*source_, options_.seq_len, windows);
}

}  // namespace fullshard::data
