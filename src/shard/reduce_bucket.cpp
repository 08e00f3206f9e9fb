#include "shard/reduce_bucket.h"

#include <cstring>
#include <utility>

namespace fullshard::shard {

ReduceBuckets::ReduceBuckets(const std::vector<FlatUnit>& units, std::int64_t limit,
                             std::function<void(Bucket)> start)
    : units_(units), limit_(limit), start_(std::move(start)) {}

void ReduceBuckets::add(CompleteUnit complete) {
  if (!fits(complete.unit)) flush();
  bytes_ += units_[complete.unit].flat_reduce_bytes();
  open_.push_back(std::move(complete));
  if (bytes_ >= limit_) flush();
}

void ReduceBuckets::flush() {
  bytes_ = 0;
  if (!open_.empty()) start_(std::exchange(open_, {}));
}

bool ReduceBuckets::fits(std::size_t unit) const {
  if (open_.empty()) return true;
  const FlatUnit& first = units_[open_.front().unit];
  const FlatUnit& next = units_[unit];
  return first.reduce_dtype() == next.reduce_dtype() && first.replicated() == next.replicated() &&
         bytes_ + next.flat_reduce_bytes() <= limit_;
}

std::string name_of(const std::vector<FlatUnit>& units, const Bucket& bucket) {
  std::string names;
  for (const CompleteUnit& complete : bucket) {
    names += (names.empty() ? "" : " + ") + units[complete.unit].name;
  }
  return names;
}

at::Tensor pack(const std::vector<FlatUnit>& units, Bucket& bucket, BufferPool& buffers,
                const std::function<std::span<const layout::Range>(const FlatUnit&)>& pieces_of) {
  if (bucket.size() == 1) return std::exchange(bucket.front().gradients, {});
  std::int64_t bytes = 0;
  for (const CompleteUnit& complete : bucket) {
    const FlatUnit& unit = units[complete.unit];
    const std::span<const layout::Range> pieces = pieces_of(unit);
    bytes += (pieces.back().end - pieces.front().begin) * unit.reduce_element_bytes();
  }
  at::Tensor packed = buffers.take(bytes);
  auto* to = static_cast<std::byte*>(packed.mutable_data_ptr());
  const auto append = [&](const CompleteUnit& complete, std::size_t piece) {
    const FlatUnit& unit = units[complete.unit];
    const std::span<const layout::Range> pieces = pieces_of(unit);
    const std::int64_t before = pieces[piece].begin - pieces.front().begin;
    const std::int64_t element = unit.reduce_element_bytes();
    const auto count = static_cast<std::size_t>(pieces[piece].size() * element);
    if (count == 0) return;
    const auto* from = static_cast<const std::byte*>(complete.gradients.const_data_ptr());
    std::memcpy(to, from + before * element, count);
    to += count;
  };
  const std::size_t pieces = pieces_of(units[bucket.front().unit]).size();
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    for (const CompleteUnit& complete : bucket) append(complete, piece);
  }
  for (CompleteUnit& complete : bucket) buffers.give_back(std::exchange(complete.gradients, {}));
  return packed;
}

}  // namespace fullshard::shard
