#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <vector>

#include "fullshard/base/error.h"
#include "shard/engine.h"
#include "shard/store_values.h"

namespace fullshard::shard {

void Engine::open_scope() {
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
  std::vector<at::Tensor> masters(units_.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].has_masters()) masters[u] = gather_masters(u).clone();
  }
  pager_->pin(memories);
  scope_copies_ = std::move(copies);
  scope_masters_ = std::move(masters);
  try {
    show_masters();
  } catch (...) {
    close_scope(UnshardedMode::kReadOnly, /*discard=*/true);
    throw;
  }
}

// As ordinary tensors in the shards' dtype: what is read, changed and saved is exact.
void Engine::show_masters() {
  const c10::InferenceMode not_for_inference(false);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!scope_masters_[u].defined()) continue;
    for (std::size_t i = 0; i < units_[u].parameters.size(); ++i) {
      units_[u].storages[i]->set_shadowed(true);
      units_[u].parameters[i].tensor.set_data(parameter_in(units_[u], scope_masters_[u], i));
    }
  }
}

void Engine::hide_masters() {
  const residency::BypassScope bypass;
  const c10::InferenceMode not_for_inference(false);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!scope_masters_[u].defined()) continue;
    for (std::size_t i = 0; i < units_[u].parameters.size(); ++i) {
      units_[u].storages[i]->set_shadowed(false);
      units_[u].parameters[i].tensor.set_data(paged_parameter(units_[u], i));
    }
  }
}

void Engine::close_scope(UnshardedMode mode, bool discard) {
  if (scope_copies_.empty() && !pager_->pinned()) return;
  const at::NoGradGuard no_grad;
  hide_masters();
  const std::vector<at::Tensor> copies = std::exchange(scope_copies_, {});
  const std::vector<at::Tensor> masters = std::exchange(scope_masters_, {});
  pager_->unpin();
  if (mode == UnshardedMode::kReadOnly || discard) return;
  begin_update();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const FlatUnit& unit = units_[u];
    if (unit.own.empty()) continue;
    const at::Tensor& changed = unit.has_masters() ? masters[u] : copies[u];
    const auto* memory = static_cast<const std::byte*>(changed.const_data_ptr());
    std::memcpy(unit.shard_memory, memory + unit.own.begin * unit.shard_element_bytes(),
                static_cast<std::size_t>(unit.own_shard_bytes()));
    note_change(u);
  }
}

}  // namespace fullshard::shard
