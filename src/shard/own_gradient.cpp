#include "shard/own_gradient.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

namespace fullshard::shard {

OwnGradient::OwnGradient(const FlatUnit& unit) : unit_(unit) { make(); }

void OwnGradient::make() {
  // Not views in autograd's eyes: torch::optim::Optimizer::zero_grad detaches gradients in place.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto bytes = static_cast<std::size_t>(unit_.own_shard_bytes());
  storage_ = c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU));
  has_memory_ = false;
  parts_.clear();
  for (std::size_t i = 0; i < unit_.parameters.size(); ++i) {
    at::Tensor part = at::empty({0}, unit_.shard_dtype());
    parts_.push_back(part.set_(storage_, unit_.own_offset(i), {unit_.own_range(i).size()}));
  }
}

std::byte* OwnGradient::memory() {
  return memory_from([](std::size_t) { return c10::DataPtr(); });
}

std::byte* OwnGradient::memory_from(const std::function<c10::DataPtr(std::size_t)>& make) {
  if (!has_memory_) {
    c10::DataPtr data = make(storage_.nbytes());
    if (data == nullptr) data = c10::GetCPUAllocator()->allocate(storage_.nbytes());
    storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    has_memory_ = true;
  }
  return static_cast<std::byte*>(storage_.mutable_data());
}

const at::Tensor& OwnGradient::part(std::size_t parameter) {
  memory();
  return parts_[parameter];
}

bool OwnGradient::holds(const at::Tensor& tensor) const {
  return tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl();
}

bool OwnGradient::anyone_else_has() const {
  const auto is_kept = [](const at::Tensor& part) { return part.use_count() > 1; };
  return std::any_of(parts_.begin(), parts_.end(), is_kept) ||
         storage_.use_count() > parts_.size() + 1;
}

void OwnGradient::release_unless_held(bool held) {
  if (!has_memory_ || held) return;
  if (anyone_else_has()) {
    make();
  } else {
    storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
    has_memory_ = false;
  }
}

}  // namespace fullshard::shard
