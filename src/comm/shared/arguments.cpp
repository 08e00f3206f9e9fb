#include "comm/shared/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "fullshard/base/error.h"
#include "fullshard/comm/reduce.h"

namespace fullshard::comm::shared {
namespace {

template <typename... Args>
[[noreturn]] void reject(std::string_view operation, fmt::format_string<Args...> text,
                         Args&&... args) {
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format("{}: {}", operation, fmt::format(text, std::forward<Args>(args)...)));
}

std::string name_of_place(int device) {
  return device == kHostMemory ? "the host" : fmt::format("device {}", device);
}

}  // namespace

Parts cut(std::span<const std::int64_t> counts, int ranks, std::string_view operation) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    reject(operation, "there are {} counts for {} ranks; give one a rank", counts.size(), ranks);
  }
  Parts parts;
  parts.counts.assign(counts.begin(), counts.end());
  for (const std::int64_t count : counts) {
    if (count < 0) reject(operation, "the count {} is negative", count);
    parts.offsets.push_back(parts.total);
    parts.total += count;
    parts.longest = std::max(parts.longest, count);
  }
  return parts;
}

Parts cut_whole(ConstBuffer whole, ConstBuffer part, std::span<const std::int64_t> counts, int rank,
                int ranks, std::string_view operation, int device) {
  check_buffer(whole, operation, device);
  check_buffer(part, operation, device);
  check_same_type(whole, part, operation);
  const std::vector<std::int64_t> equal(static_cast<std::size_t>(ranks), part.count);
  Parts parts =
      cut(counts.empty() ? std::span<const std::int64_t>(equal) : counts, ranks, operation);
  const std::int64_t own = parts.counts[static_cast<std::size_t>(rank)];
  if (part.count != own) {
    reject(operation, "rank {} passes {} elements as its part, but its count is {}", rank,
           part.count, own);
  }
  check_total(whole, parts, operation);
  return parts;
}

void check_total(ConstBuffer whole, const Parts& parts, std::string_view operation) {
  if (whole.count == parts.total) return;
  reject(operation, "the buffer has {} elements, but the ranks' parts have {} together",
         whole.count, parts.total);
}

void check_buffer(ConstBuffer buffer, std::string_view operation, int device) {
  if (buffer.device != device) {
    reject(operation, "a buffer on {} was passed, and this group moves memory of {}",
           name_of_place(buffer.device), name_of_place(device));
  }
  if (buffer.count < 0) reject(operation, "a buffer of {} elements was passed", buffer.count);
  if (buffer.count > 0 && buffer.data == nullptr) {
    reject(operation, "a null pointer was passed for {} elements", buffer.count);
  }
}

void check_root(int root, int ranks, std::string_view operation) {
  if (root < 0 || root >= ranks) {
    reject(operation, "root {} is not one of the ranks 0 to {}", root, ranks - 1);
  }
}

void check_members(std::span<const int> ranks, int size) {
  if (ranks.empty()) reject("subgroup", "the list of ranks is empty");
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size) {
      reject("subgroup", "{} is not one of the ranks 0 to {}", rank, size - 1);
    }
  }
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    reject("subgroup", "a rank is in the list twice");
  }
}

void check_same_type(ConstBuffer a, ConstBuffer b, std::string_view operation) {
  if (a.dtype != b.dtype) {
    reject(operation, "one buffer is {}, the other {}; they must be of one type",
           base::to_string(a.dtype), base::to_string(b.dtype));
  }
}

void check_reduction(base::DType dtype, ReduceOp op, std::string_view operation) {
  if (can_reduce(dtype, op)) return;
  reject(operation, "elements of type {} have no {}; {}", base::to_string(dtype),
         op == ReduceOp::kMean ? "mean" : "sum",
         dtype == base::DType::kBool ? "use max for 'any' and min for 'all'"
                                     : "use a sum, or convert to a floating type");
}

void check_options(const CommOptions& options) {
  if (options.timeout.count() <= 0) {
    reject("communication options", "a timeout of {} s is not positive",
           base::seconds(options.timeout));
  }
  if (options.heartbeat_timeout.count() != 0 &&
      options.heartbeat_timeout < std::chrono::seconds(1)) {
    reject("communication options",
           "a heartbeat timeout of {} s is neither 0 nor at least a second",
           base::seconds(options.heartbeat_timeout));
  }
  if (options.spin.count() < 0) {
    reject("communication options", "a spin of {} s is negative", base::seconds(options.spin));
  }
  if (options.staging < 4096 || options.staging % 64 != 0) {
    reject("communication options", "staging of {} bytes is not a multiple of 64 from 4096 up",
           options.staging);
  }
}

}  // namespace fullshard::comm::shared
