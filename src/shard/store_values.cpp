#include "shard/store_values.h"

#include <ATen/ops/from_blob.h>

#include "fullshard/state/sharded_tensor.h"

namespace fullshard::shard {

at::Tensor parameter_in(const FlatUnit& unit, const at::Tensor& whole, std::size_t parameter) {
  const layout::PlacedParameter& placed = unit.layout.parameters()[parameter];
  return whole.as_strided(placed.spec.shape, placed.strides(), placed.offset);
}

void store_whole(const FlatUnit& unit, const at::Tensor& whole) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    if (unit.layout.parameters()[i].numel == 0) continue;
    parameter_in(unit, whole, i).copy_(unit.parameters[i].tensor.detach());
  }
}

void store_whole(const FlatUnit& unit, std::byte* whole) {
  store_whole(unit, at::from_blob(whole, {unit.layout.flat_size()}, unit.dtype()));
}

void store_own(const FlatUnit& unit, std::size_t parameter, const at::Tensor& values) {
  const layout::Range owned = unit.own_range(parameter);
  if (owned.empty()) return;
  const std::int64_t offset = unit.layout.parameters()[parameter].offset;
  at::from_blob(unit.shard_at(offset + owned.begin), {owned.size()}, unit.shard_dtype())
      .copy_(state::in_storage_order(values.detach(), unit.cut_dimension(parameter))
                 .narrow(0, owned.begin, owned.size()));
}

void store_own(const FlatUnit& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    store_own(unit, i, unit.parameters[i].tensor);
  }
}

}  // namespace fullshard::shard
