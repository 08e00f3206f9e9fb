#include "shard/gradient_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/check.h"

namespace fullshard::shard {
namespace {

// Smaller gradients are cheaper to copy than to look up.
constexpr std::int64_t kSmallestMade = 256;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

thread_local std::weak_ptr<GradientMemory> current;

// Stands in front of libtorch's allocator for CPU tensors. Autograd makes a gradient in whatever
// memory the allocator gives it; this is the only place where that can be chosen.
class GradientAllocator final : public c10::Allocator {
 public:
  explicit GradientAllocator(c10::Allocator& next) : next_(next) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= static_cast<std::size_t>(kSmallestMade) &&
        torch::autograd::get_current_graph_task_id() != -1) {
      if (const auto memory = current.lock()) {
        if (c10::DataPtr made = memory->try_make(bytes)) return made;
      }
    }
    return next_.allocate(bytes);
  }

  // Holds for what the next allocator gives. Raw allocation is not used for tensors.
  c10::DeleterFnPtr raw_deleter() const override { return next_.raw_deleter(); }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    next_.copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& next_;
};

// With the paging fallback, the second registration that concerns the whole process. It has no
// state of its own and does nothing in threads that train no sharded model.
const bool registered = [] {
  static GradientAllocator allocator(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator);
  return true;
}();

}  // namespace

struct GradientMemory::Block {
  std::shared_ptr<GradientMemory> memory;
  GradientArena* arena;
  std::int64_t offset;
};

std::shared_ptr<GradientMemory> GradientMemory::make(comm::Group& group,
                                                     const std::vector<FlatUnit>& units) {
  return std::shared_ptr<GradientMemory>(new GradientMemory(group, units));
}

// Both halves hold twice the sum of all gradients, so that first-fit may leave gaps.
GradientMemory::GradientMemory(comm::Group& group, const std::vector<FlatUnit>& units)
    : rank_(group.rank()) {
  FULLSHARD_CHECK(registered);
  std::int64_t sum = 64;
  for (const FlatUnit& unit : units) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::int64_t bytes = unit.layout.parameters()[i].numel * unit.element_bytes();
      sum += round_up(bytes, 64) + 64;
      if (bytes < kSmallestMade || !unit.parameters[i].tensor.requires_grad()) continue;
      sizes_.push_back(static_cast<std::size_t>(bytes));
    }
  }
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  half_ = round_up(2 * sum, 4096);
  row_ = 2 * half_;
  made_ = GradientArena(half_);
  copies_ = GradientArena(half_);
  segment_ = group.allocate_shared(static_cast<std::size_t>(row_ * group.size()), "gradients");
}

GradientMemory::~GradientMemory() {
  for (Block* block : spare_) delete block;
}

c10::DataPtr GradientMemory::try_make(std::size_t bytes) {
  if (!std::binary_search(sizes_.begin(), sizes_.end(), bytes)) return {};
  return take(made_, 0, static_cast<std::int64_t>(bytes));
}

at::Tensor GradientMemory::make_copy(at::ScalarType dtype, at::IntArrayRef shape) {
  at::Tensor out = at::empty({0}, dtype);
  const auto bytes =
      static_cast<std::int64_t>(out.dtype().itemsize()) * c10::multiply_integers(shape);
  c10::DataPtr data = take(copies_, half_, bytes);
  FULLSHARD_CHECK(data != nullptr);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                             std::move(data));
  return out.set_(storage, 0, shape);
}

std::int64_t GradientMemory::offset_of(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  const std::byte* row = at(rank_, 0);
  return byte >= row && byte < row + row_ ? byte - row : -1;
}

c10::DataPtr GradientMemory::take(GradientArena& arena, std::int64_t base, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t offset = arena.allocate(bytes);
  if (offset == -1) return {};
  if (spare_.empty()) spare_.push_back(new Block);
  Block* block = spare_.back();
  spare_.pop_back();
  *block = {shared_from_this(), &arena, offset};
  void* memory = segment_->data() + rank_ * row_ + base + offset;
  return {memory, block, &give_back, at::kCPU};
}

void GradientMemory::give_back(void* data) {
  auto* block = static_cast<Block*>(data);
  const std::shared_ptr<GradientMemory> memory = std::move(block->memory);
  const std::lock_guard lock(memory->mutex_);
  block->arena->free(block->offset);
  memory->spare_.push_back(block);
}

void make_gradients_in(const std::shared_ptr<GradientMemory>& memory) {
  if (current.lock() != memory) current = memory;
}

OrdinaryMemory::OrdinaryMemory() : suspended_(std::exchange(current, {})) {}

OrdinaryMemory::~OrdinaryMemory() { current = std::move(suspended_); }

}  // namespace fullshard::shard
