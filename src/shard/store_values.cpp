#include "shard/store_values.h"

#include <ATen/ops/from_blob.h>

#include "fullshard/state/sharded_tensor.h"

namespace fullshard::shard {

void store_whole(const FlatUnit& unit, std::byte* whole) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const layout::PlacedParameter& placed = unit.layout.parameters()[i];
    if (placed.numel == 0) continue;
    const at::Tensor& values = unit.parameters[i].tensor;
    at::from_blob(whole + placed.offset * unit.element_bytes(), placed.spec.shape, placed.strides(),
                  unit.dtype())
        .copy_(values.detach());
  }
}

void store_own(const FlatUnit& unit, std::size_t parameter, const at::Tensor& values) {
  const layout::Range owned = unit.own_range(parameter);
  if (owned.empty()) return;
  const std::int64_t offset = unit.layout.parameters()[parameter].offset;
  at::from_blob(unit.own_at(offset + owned.begin), {owned.size()}, unit.dtype())
      .copy_(state::in_storage_order(values.detach(), unit.cut_dimension(parameter))
                 .narrow(0, owned.begin, owned.size()));
}

void store_own(const FlatUnit& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    store_own(unit, i, unit.parameters[i].tensor);
  }
}

}  // namespace fullshard::shard
