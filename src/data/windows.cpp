#include "fullshard/data/windows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/data/permutation.h"

namespace fullshard::data {

Share share_of(std::int64_t total, std::int64_t index, std::int64_t count) {
  return {total * index / count, total * (index + 1) / count};
}

std::int64_t count_windows(const TokenSource& source, std::int64_t seq_len) {
  if (seq_len < 1) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("seq_len must be at least 1, not {}", seq_len));
  }
  const std::int64_t count = std::max<std::int64_t>(0, source.size() - 1) / seq_len;
  if (count > 0) return count;
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format("a text of {} tokens is too short: one sample of seq_len {} takes {}",
                  source.size(), seq_len, seq_len + 1));
}

Batch read_windows(const TokenSource& source, std::int64_t seq_len,
                   std::span<const std::int64_t> windows) {
  const auto rows = static_cast<std::int64_t>(windows.size());
  const auto width = static_cast<std::size_t>(seq_len + 1);
  at::Tensor all = at::empty({rows, seq_len + 1}, at::kLong);
  std::int64_t* out = all.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t window : windows) {
    source.read(window * seq_len, {out, width});
    out += width;
  }
  // The narrowed part of a single row is contiguous already; masking needs memory of its own.
  Batch batch{all.narrow(1, 0, seq_len).contiguous(),
              all.narrow(1, 1, seq_len).clone(at::MemoryFormat::Contiguous)};
  std::int64_t* targets = batch.targets.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t window : windows) {
    source.mask(window * seq_len + 1, {targets, width - 1});
    targets += width - 1;
  }
  return batch;
}

std::int64_t Batch::learnt() const { return targets.ne(kIgnoredTarget).sum().item<std::int64_t>(); }

Windows::Windows(std::shared_ptr<const TokenSource> source, std::int64_t seq_len,
                 std::uint64_t seed)
    : source_(std::move(source)),
      seq_len_(seq_len),
      per_epoch_(count_windows(*source_, seq_len)),
      seed_(seed) {}

std::int64_t Windows::window_of(Cursor cursor) const {
  return order_of_epoch(per_epoch_, seed_, cursor.epoch)(cursor.sample);
}

Batch Windows::batch(std::int64_t begin, std::int64_t count) const {
  std::vector<std::int64_t> windows;
  windows.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) windows.push_back(window_of(cursor(begin + i)));
  return read_windows(*source_, seq_len_, windows);
}

}  // namespace fullshard::data
