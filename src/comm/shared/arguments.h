#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fullshard/comm/types.h"

namespace fullshard::comm::shared {

/// How a buffer is cut into the ranks' parts, in elements.
struct Parts {
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> offsets;
  std::int64_t total = 0;
  std::int64_t longest = 0;
};

/// Cuts by `counts`, one for each of `ranks` ranks. Throws kInvalidArgument naming `operation` when
/// there are too few, or negative ones.
Parts cut(std::span<const std::int64_t> counts, int ranks, std::string_view operation);

/// The parts of a collective with one whole and one part buffer: `counts`, or equal parts of
/// `part_count` when empty. Throws kInvalidArgument unless the buffers fit them and lie on
/// `device`.
Parts cut_whole(ConstBuffer whole, ConstBuffer part, std::span<const std::int64_t> counts, int rank,
                int ranks, std::string_view operation, int device = kHostMemory);

/// Throws kInvalidArgument unless the parts fill the buffer.
void check_total(ConstBuffer whole, const Parts& parts, std::string_view operation);

/// Throws kInvalidArgument for a negative count, elements without memory, or memory that is not on
/// the device that the group serves.
void check_buffer(ConstBuffer buffer, std::string_view operation, int device = kHostMemory);

/// Throws kInvalidArgument when `root` is no rank.
void check_root(int root, int ranks, std::string_view operation);

/// Throws kInvalidArgument unless `ranks` can be a subgroup of a group of `size` ranks.
void check_members(std::span<const int> ranks, int size);

/// Throws kInvalidArgument when the buffers' types differ.
void check_same_type(ConstBuffer a, ConstBuffer b, std::string_view operation);

/// Throws kInvalidArgument when `op` is not defined for the type.
void check_reduction(base::DType dtype, ReduceOp op, std::string_view operation);

/// Throws kInvalidArgument for a timeout or a staging size that cannot work.
void check_options(const CommOptions& options);

inline std::size_t bytes_of(std::int64_t count, base::DType dtype) {
  return static_cast<std::size_t>(count) * base::size_of(dtype);
}

}  // namespace fullshard::comm::shared
