#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <string>

#include "fullshard/residency/pager.h"

namespace fullshard::residency {

/// Memory of a tensor that may be absent. While it is, any access to raw memory throws, naming the
/// tensor; an operator on a tensor made by make_paged_tensor first asks the pager to bring it in.
///
/// Aliases (views, detached copies, autograd's saved tensors) share the storage, so mapping and
/// unmapping reach all of them at once. The memory is never owned by the storage.
class PagedStorage : public c10::StorageImpl {
 public:
  /// `name` is the user's name of the tensor, `index` the pager's own key (its unit, for instance).
  PagedStorage(std::string name, std::size_t bytes, int index);

  const std::string& name() const { return name_; }
  int index() const { return index_; }
  Pager* pager() const { return pager_; }

  /// Names the pager that is asked from now on; it must call orphan() before it goes away.
  void attach(Pager* pager) { pager_ = pager; }

  /// Points at `memory`, which must stay valid until unmap or another map.
  void map(void* memory);

  /// Forgets the memory; from now on raw access throws.
  void unmap();

  bool mapped() const { return mapped_; }

  /// While the parameter is shown from other memory, writing to what aliases this would be lost.
  void set_shadowed(bool shadowed) { shadowed_ = shadowed; }
  bool shadowed() const { return shadowed_; }

  /// Operators that need their operands in one dtype get the others in this tensor's.
  void set_casts_operands() { casts_operands_ = true; }
  bool casts_operands() const { return casts_operands_; }

  /// Cuts the tie to a pager that is going away; later accesses throw.
  void orphan();

 private:
  std::string name_;
  Pager* pager_ = nullptr;
  int index_;
  bool mapped_ = false;
  bool casts_operands_ = false;
  bool shadowed_ = false;
};

/// A contiguous tensor over `storage`, which it shares ownership of, beginning at its first byte.
/// Operators on the tensor and its aliases are announced to the storage's pager; results are
/// ordinary.
at::Tensor make_paged_tensor(const c10::intrusive_ptr<PagedStorage>& storage, at::ScalarType dtype,
                             at::IntArrayRef sizes, at::IntArrayRef strides);

/// The storage of a tensor made by make_paged_tensor or of an alias of one; null for others.
PagedStorage* paged_storage(const at::Tensor& tensor);

/// While it lives, operators of this thread reach paged tensors without announcing themselves. For
/// work on memory that is known to be mapped.
class BypassScope {
 public:
  BypassScope();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fullshard::residency
