#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/residency/paged_storage.h"
#include "residency/operand_cast.h"
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
                    "destroyed, or has moved its shards and given parameters() other memory; keep "
                    "the handle that fully_shard returned alive, and no aliases of shards",
                    op, storage.name()));
  }
  return *pager;
}

// The paged tensors among an operator's arguments; lives until the operator has run.
class Operands {
 public:
  Operands() = default;
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;
  ~Operands() {
    for (Pager* pager : used_) pager->end_use();
  }

  /// For an operator with this storage among its arguments.
  Pager& use(PagedStorage& storage, const std::string& op) {
    Pager& pager = pager_of(storage, op);
    if (std::find(used_.begin(), used_.end(), &pager) == used_.end()) {
      if (pager.begin_use(storage, op)) used_.push_back(&pager);
    }
    return pager;
  }

  void add(const c10::IValue& value, Access access) {
    if (value.isTensor()) {
      add(value.toTensor(), access);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) add(tensor, access);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) add(item.toTensor(), access);
      }
    }
  }

  /// Whether the operator may want its other operands in the dtype of these.
  bool cast_others() const {
    return std::any_of(storages_.begin(), storages_.end(),
                       [](const PagedStorage* storage) { return storage->casts_operands(); });
  }

  void announce(const std::string& op) {
    for (PagedStorage* storage : storages_) use(*storage, op);
    if (are_of_several_units()) {
      const Pager* last = nullptr;
      for (const PagedStorage* storage : storages_) {
        Pager& pager = pager_of(*storage, op);
        if (&pager != std::exchange(last, &pager)) pager.use_together(storages_);
      }
    }
    // A read may close an update and a write opens one: the write has the last word.
    for (const Access access : {Access::kRead, Access::kWrite}) {
      for (std::size_t i = 0; i < storages_.size(); ++i) {
        if (accesses_[i] != access) continue;
        pager_of(*storages_[i], op).on_access(*storages_[i], access, op);
      }
    }
  }

 private:
  void add(const at::Tensor& tensor, Access access) {
    PagedStorage* storage = paged_storage(tensor);
    if (storage == nullptr) return;
    storages_.push_back(storage);
    accesses_.push_back(access);
  }

  bool are_of_several_units() const {
    return std::any_of(storages_.begin(), storages_.end(), [&](const PagedStorage* storage) {
      return storage->index() != storages_.front()->index();
    });
  }

  c10::SmallVector<Pager*, 4> used_;  // that are to hear of the end
  c10::SmallVector<PagedStorage*, 8> storages_;
  c10::SmallVector<Access, 8> accesses_;
};

void page_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const std::size_t first = stack->size() - arguments.size();
  Operands operands;
  if (!arguments.empty() && (*stack)[first].isTensor()) {
    PagedStorage* storage = paged_storage((*stack)[first].toTensor());
    if (storage != nullptr && operands.use(*storage, schema.name())
                                  .replace(*storage, schema.name(), arguments.size(), *stack)) {
      return;
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    operands.add((*stack)[first + i], writes ? Access::kWrite : Access::kRead);
  }
  operands.announce(schema.name());
  if (operands.cast_others()) cast_operands(schema, *stack);
  const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(kPagingKey)};
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPagingKey),
                     stack);
}

}  // namespace
}  // namespace fullshard::residency

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fullshard::residency::page_in>());
}
