#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fullshard/base/dtype.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::shared {

/// Text of bounded length inside shared memory. Longer text keeps its end, where dotted names
/// differ.
template <std::size_t kCapacity>
struct FixedText {
  std::array<char, kCapacity> chars{};

  FixedText() = default;
  explicit FixedText(std::string_view text) {
    constexpr std::string_view kCut = "...";
    std::string shortened;
    if (text.size() >= kCapacity) {
      shortened = kCut;
      shortened += text.substr(text.size() - (kCapacity - 1 - kCut.size()));
      text = shortened;
    }
    text.copy(chars.data(), kCapacity - 1);
  }

  std::string_view view() const { return {chars.data()}; }
  bool operator==(const FixedText&) const = default;
};

enum class OperationKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kAllocate,
  kSubgroup,
};

/// As in Group: "all_gather".
std::string_view name_of(OperationKind kind);
/// "sum".
std::string_view name_of(ReduceOp op);

/// What one rank believes it is doing; equal on all ranks of a collective or the call is a
/// mismatch.
struct OperationRecord {
  OperationKind kind = OperationKind::kBarrier;
  base::DType dtype = base::DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  bool on_devices = false;  ///< where the elements lie
  std::int32_t root = -1;
  std::int64_t count = 0;  ///< elements of the whole; bytes for kAllocate
  std::int64_t step = -1;
  std::uint64_t counts_hash = 0;  ///< of every rank's count
  std::uint64_t unit_hash = 0;    ///< of the whole name, also where `unit` is cut
  std::uint32_t counts_size = 0;
  std::array<std::int64_t, 4> counts{};  ///< the first ones, to show
  FixedText<96> unit;

  OperationRecord() = default;
  OperationRecord(OperationKind what, const OpTag& tag);
  /// About `whole`, the buffer of all ranks' elements.
  OperationRecord(OperationKind what, ConstBuffer whole, const OpTag& tag);

  void set_counts(std::span<const std::int64_t> all);
  bool operator==(const OperationRecord&) const = default;
};

/// In words: "all_reduce (sum of 1024 float32) of unit 'blocks.3' in step 7".
std::string describe(const OperationRecord& record);

/// The same with the operation's number in its group, by which flight records are lined up, and
/// its size: "... in step 7 (#42, 4096 bytes)". Without a number yet, as describe().
std::string describe_call(const OperationRecord& record, std::uint64_t number);

/// The tail of a description: " of unit 'blocks.3' in step 7", empty when the tag says nothing.
std::string describe_tag(std::string_view unit, std::int64_t step);

}  // namespace fullshard::comm::shared
