#include "comm/shared/operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fullshard::comm::shared {
namespace {

// FNV-1a, 64 bits.
std::uint64_t hash_bytes(const void* data, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 0x100000001b3U;
  return hash;
}

std::string counts_text(const OperationRecord& record) {
  const std::size_t shown = std::min<std::size_t>(record.counts_size, record.counts.size());
  const std::span<const std::int64_t> counts(record.counts.data(), shown);
  return fmt::format("{}{}", fmt::join(counts, " + "), shown < record.counts_size ? " + ..." : "");
}

std::string call_text(const OperationRecord& record) {
  const auto type = base::to_string(record.dtype);
  switch (record.kind) {
    case OperationKind::kAllGather:
      return fmt::format("all_gather ({} {})", counts_text(record), type);
    case OperationKind::kReduceScatter:
      return fmt::format("reduce_scatter ({} of {} {})", name_of(record.op), counts_text(record),
                         type);
    case OperationKind::kAllReduce:
      return fmt::format("all_reduce ({} of {} {})", name_of(record.op), record.count, type);
    case OperationKind::kBroadcast:
      return fmt::format("broadcast ({} {} from rank {})", record.count, type, record.root);
    case OperationKind::kAllToAll: return fmt::format("all_to_all ({})", type);
    case OperationKind::kBarrier: return "barrier";
    case OperationKind::kAllocate:
      return fmt::format("allocation of {} shared bytes", record.count);
    case OperationKind::kSubgroup: return fmt::format("subgroup (ranks {})", counts_text(record));
  }
  return "unknown operation";
}

}  // namespace

std::string_view name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllGather: return "all_gather";
    case OperationKind::kReduceScatter: return "reduce_scatter";
    case OperationKind::kAllReduce: return "all_reduce";
    case OperationKind::kBroadcast: return "broadcast";
    case OperationKind::kAllToAll: return "all_to_all";
    case OperationKind::kBarrier: return "barrier";
    case OperationKind::kAllocate: return "allocate_shared";
    case OperationKind::kSubgroup: return "subgroup";
  }
  return "unknown";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMean: return "mean";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
  }
  return "unknown";
}

OperationRecord::OperationRecord(OperationKind what, const OpTag& tag)
    : kind(what),
      step(tag.step),
      unit_hash(tag.unit.empty() ? 0 : hash_bytes(tag.unit.data(), tag.unit.size())),
      unit(tag.unit) {}

OperationRecord::OperationRecord(OperationKind what, ConstBuffer whole, const OpTag& tag)
    : OperationRecord(what, tag) {
  dtype = whole.dtype;
  count = whole.count;
}

void OperationRecord::set_counts(std::span<const std::int64_t> all) {
  counts_size = static_cast<std::uint32_t>(all.size());
  counts_hash = hash_bytes(all.data(), all.size_bytes());
  std::copy_n(all.begin(), std::min(all.size(), counts.size()), counts.begin());
}

std::string describe_tag(std::string_view unit, std::int64_t step) {
  std::string text;
  if (!unit.empty()) text += fmt::format(" of unit '{}'", unit);
  if (step >= 0) text += fmt::format(" in step {}", step);
  return text;
}

std::string describe(const OperationRecord& record) {
  if (record.kind == OperationKind::kAllocate || record.kind == OperationKind::kSubgroup) {
    const auto purpose = record.unit.view();
    return call_text(record) + (purpose.empty() ? "" : fmt::format(" for '{}'", purpose));
  }
  return call_text(record) + (record.on_devices ? " on devices" : "") +
         describe_tag(record.unit.view(), record.step);
}

std::string describe_call(const OperationRecord& record, std::uint64_t number) {
  if (number == 0) return describe(record);
  const std::int64_t bytes = record.count * static_cast<std::int64_t>(base::size_of(record.dtype));
  return fmt::format("{} (#{}{})", describe(record), number,
                     bytes == 0 ? "" : fmt::format(", {} bytes", bytes));
}

}  // namespace fullshard::comm::shared
