#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <vector>

#include "fullshard/base/error.h"
#include "shard/engine.h"

namespace fullshard::shard {

void Engine::open_scope(UnshardedMode) {
  if (!scope_copies_.empty()) {
    throw base::Error(base::ErrorCode::kMisuse,
                      "an unsharded() scope is open already; close it before opening another one");
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  std::vector<std::byte*> memories;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::int64_t bytes = units_[u].layout.flat_bytes();
    at::Tensor copy = at::empty({bytes}, at::kByte);
    auto* memory = static_cast<std::byte*>(copy.mutable_data_ptr());
    with_unit(u, [&](std::byte* whole) {
      if (bytes > 0) std::memcpy(memory, whole, static_cast<std::size_t>(bytes));
    });
    memories.push_back(memory);
    copies.push_back(std::move(copy));
  }
  pager_->pin(memories);
  scope_copies_ = std::move(copies);
}

void Engine::close_scope(UnshardedMode mode, bool discard) {
  if (scope_copies_.empty() && !pager_->pinned()) return;
  const std::vector<at::Tensor> copies = std::exchange(scope_copies_, {});
  pager_->unpin();
  if (mode == UnshardedMode::kReadOnly || discard) return;
  begin_update();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const FlatUnit& unit = units_[u];
    if (unit.own.empty()) continue;
    const auto* memory = static_cast<const std::byte*>(copies[u].const_data_ptr());
    const std::int64_t bytes = unit.element_bytes();
    std::memcpy(unit.own_at(unit.own.begin), memory + unit.own.begin * bytes,
                static_cast<std::size_t>(unit.own_bytes()));
  }
}

}  // namespace fullshard::shard
