#include "shard/checksum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::shard {

std::vector<std::size_t> ranks_unlike_rank0(comm::Group& group, std::string_view bytes,
                                            const comm::OpTag& tag) {
  const auto mine = static_cast<std::int64_t>(std::hash<std::string_view>{}(bytes));
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather({&mine, 1, base::DType::kInt64}, {all.data(), group.size(), base::DType::kInt64},
                  {}, tag)
      .wait();
  std::vector<std::size_t> different;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) different.push_back(rank);
  }
  return different;
}

std::vector<std::size_t> ranks_unlike_rank0(comm::Group& group, std::span<const double> numbers,
                                            const comm::OpTag& tag) {
  return ranks_unlike_rank0(
      group, {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()}, tag);
}

void require_same_on_all_ranks(comm::Group& group, const at::Tensor& values,
                               const std::string& name) {
  const at::Tensor contiguous = values.contiguous();
  const std::string_view bytes(static_cast<const char*>(contiguous.const_data_ptr()),
                               contiguous.nbytes());
  const std::vector<std::size_t> different = ranks_unlike_rank0(group, bytes, {name, 0});
  if (different.empty()) return;
  throw base::Error(
      base::ErrorCode::kMismatch,
      fmt::format("parameter '{}' differs from rank 0's on rank {}; seed all ranks alike, or set "
                  "sync_module_states to start from rank 0's values",
                  name, fmt::join(different, ", ")),
      static_cast<int>(different.front()));
}

}  // namespace fullshard::shard
