#include "shard/gather_owned.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <vector>

#include "shard/dtype.h"

namespace fullshard::shard {
namespace {

std::vector<std::int64_t> sizes_of(std::span<const layout::Range> ranges) {
  std::vector<std::int64_t> sizes;
  for (const layout::Range& range : ranges) sizes.push_back(range.size());
  return sizes;
}

at::Tensor gathered(comm::Group& group, const at::Tensor& mine,
                    const std::vector<std::int64_t>& counts, const comm::OpTag& tag) {
  std::int64_t all = 0;
  for (const std::int64_t count : counts) all += count;
  at::Tensor out = at::empty({all}, mine.scalar_type());
  const base::DType dtype = to_dtype(mine.scalar_type(), tag.unit);
  group
      .all_gather({mine.const_data_ptr(), mine.numel(), dtype},
                  {out.mutable_data_ptr(), all, dtype}, counts, tag)
      .wait();
  return out;
}

}  // namespace

at::Tensor gather_owned(const comm::Mesh& mesh, const FlatUnit& unit, const at::Tensor& own,
                        const comm::OpTag& tag) {
  if (unit.replicated()) return own;
  at::Tensor held = own;
  if (unit.divided()) {
    held = gathered(*mesh.replicate, own, sizes_of(unit.pieces_of(mesh.shard->rank())), tag);
  }
  return gathered(*mesh.shard, held, unit.slice_sizes(), tag);
}

at::Tensor owned_values(const FlatUnit& unit) {
  return at::from_blob(unit.shard_memory, {unit.own.size()}, unit.shard_dtype());
}

}  // namespace fullshard::shard
