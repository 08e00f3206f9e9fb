#include "fullshard/residency/paged_storage.h"

#include <c10/core/TensorImpl.h>
#include <fmt/format.h>

#include <utility>

#include "residency/paging_key.h"

namespace fullshard::residency {
namespace {

// StorageImpl can throw on raw access, but offers no way to switch that off again, which a storage
// that comes and goes needs. An explicit instantiation may name a private member; this is the one
// place that relies on it, and a renamed member fails to compile.
template <bool c10::StorageImpl::*Member>
struct Expose {
  friend constexpr bool c10::StorageImpl::*throw_flag() { return Member; }
};
constexpr bool c10::StorageImpl::*throw_flag();
template struct Expose<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

PagedStorage::PagedStorage(std::string name, std::size_t bytes, int index)
    : c10::StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<std::int64_t>(bytes)),
                       at::DataPtr(nullptr, at::kCPU), nullptr, false),
      name_(std::move(name)),
      index_(index) {
  release_data_and_set_meta_custom_data_ptr_error_msg_(fmt::format(
      "parameter '{}' is sharded and not gathered now, so its raw memory cannot be read; "
      "use it through torch operators, or open an unsharded() scope first",
      name_));
}

void PagedStorage::map(void* memory) {
  this->*throw_flag() = false;
  set_data_ptr_noswap(at::DataPtr(memory, at::kCPU));
  mapped_ = true;
}

void PagedStorage::unmap() {
  this->*throw_flag() = true;
  set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  mapped_ = false;
}

void PagedStorage::orphan() {
  unmap();
  pager_ = nullptr;
}

at::Tensor make_paged_tensor(const c10::intrusive_ptr<PagedStorage>& storage, at::ScalarType dtype,
                             at::IntArrayRef sizes, at::IntArrayRef strides) {
  const auto keys = c10::DispatchKeySet({c10::DispatchKey::CPU, kPagingKey});
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(c10::intrusive_ptr<c10::StorageImpl>(storage)), keys,
      c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

PagedStorage* paged_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kPagingKey)) return nullptr;
  return static_cast<PagedStorage*>(tensor.storage().unsafeGetStorageImpl());
}

BypassScope::BypassScope() : guard_(c10::DispatchKeySet(kPagingKey)) {}

}  // namespace fullshard::residency
