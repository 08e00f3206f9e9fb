#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/library.h>

#include "fullshard/base/error.h"
#include "fullshard/residency/paged_storage.h"
#include "residency/paging_key.h"

// The one process-wide registration of the engine: a fallback for every operator that is given a
// paged tensor. It finds the owner from the tensor itself, so any number of sharded models and of
// ranks as threads live side by side.

namespace fullshard::residency {
namespace {

Pager& pager_of(const PagedStorage& storage, const std::string& op) {
  Pager* pager = storage.pager();
  if (pager == nullptr) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} uses parameter '{}', but the sharded model that owned it has been "
                    "destroyed; keep the handle that fully_shard returned alive",
                    op, storage.name()));
  }
  return *pager;
}

void announce(const at::Tensor& tensor, Access access, const std::string& op) {
  if (PagedStorage* storage = paged_storage(tensor)) {
    pager_of(*storage, op).on_access(*storage, access, op);
  }
}

void announce(const c10::IValue& value, Access access, const std::string& op) {
  if (value.isTensor()) {
    announce(value.toTensor(), access, op);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) announce(tensor, access, op);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) announce(item.toTensor(), access, op);
    }
  }
}

void page_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const std::size_t first = stack->size() - arguments.size();
  if (!arguments.empty() && (*stack)[first].isTensor()) {
    PagedStorage* storage = paged_storage((*stack)[first].toTensor());
    if (storage != nullptr && pager_of(*storage, schema.name())
                                  .replace(*storage, schema.name(), arguments.size(), *stack)) {
      return;
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    announce((*stack)[first + i], writes ? Access::kWrite : Access::kRead, schema.name());
  }
  const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(kPagingKey)};
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPagingKey),
                     stack);
}

}  // namespace
}  // namespace fullshard::residency

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fullshard::residency::page_in>());
}
