#include "shard/step_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <algorithm>
#include <shared_mutex>
#include <utility>

#include "fullshard/base/check.h"
#include "shard/round_up.h"

namespace fullshard::shard {
namespace {

constexpr std::size_t kLarge = std::size_t{64} << 10;
// Smaller gradients are cheaper to copy than to look up.
constexpr std::size_t kSmallest = 256;
constexpr std::int64_t kLeastTrimmed = std::int64_t{1} << 20;
constexpr std::int64_t kPage = 4096;
constexpr std::size_t kUsualActivations = 256;

// Address space only. Above what a step needs of it, it is never touched; what does not fit is made
// in ordinary memory.
std::int64_t made_capacity(std::int64_t parameter_bytes) {
  constexpr std::int64_t kAtLeast = std::int64_t{4} << 30;
  const std::int64_t host = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return round_up(std::min(host, kAtLeast + 8 * parameter_bytes), kPage);
}

thread_local std::weak_ptr<StepMemory> current;

// The allocator that was there before.
c10::Allocator& system_allocator() {
  static c10::Allocator& first = *c10::GetCPUAllocator();
  return first;
}

// Which StepMemory an address belongs to. Memory is returned by its address alone, because oneDNN
// takes its scratch by raw_allocate(), which knows no more.
class Rows {
 public:
  void add(const std::byte* begin, std::int64_t bytes, StepMemory& memory) {
    const std::lock_guard lock(mutex_);
    rows_.push_back({begin, begin + bytes, &memory});
  }

  void remove(const StepMemory& memory) {
    const std::lock_guard lock(mutex_);
    std::erase_if(rows_, [&](const Row& row) { return row.memory == &memory; });
  }

  /// Null for memory of none. What is handed out keeps its owner alive.
  StepMemory* owner_of(const void* data) {
    const auto* byte = static_cast<const std::byte*>(data);
    const std::shared_lock lock(mutex_);
    for (const Row& row : rows_) {
      if (byte >= row.begin && byte < row.end) return row.memory;
    }
    return nullptr;
  }

 private:
  struct Row {
    const std::byte* begin;
    const std::byte* end;
    StepMemory* memory;
  };
  std::shared_mutex mutex_;
  std::vector<Row> rows_;
};

// Never destroyed: there may be tensors that are returned later than that.
Rows& rows() {
  static Rows& all = *new Rows;
  return all;
}

void return_made(void* data) { FULLSHARD_CHECK(StepMemory::try_return(data)); }

void return_any(void* data) {
  if (!StepMemory::try_return(data)) system_allocator().raw_deleter()(data);
}

// Stands in front of libtorch's allocator for CPU tensors. Autograd makes a gradient in whatever
// memory the allocator gives it; this is the only place where that can be chosen.
class StepAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= kSmallest) {
      if (const auto memory = current.lock()) {
        const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
        if (c10::DataPtr made = memory->try_make(bytes, in_backward)) return made;
      }
    }
    return system_allocator().allocate(bytes);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &return_any; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    system_allocator().copy_data(to, from, bytes);
  }
};

// With the paging fallback, the second registration that concerns the whole process. It does
// nothing in threads that train no sharded model.
const bool registered = [] {
  system_allocator();
  static StepAllocator allocator;
  c10::SetCPUAllocator(&allocator);
  return true;
}();

}  // namespace

std::shared_ptr<StepMemory> StepMemory::make(comm::Group& group,
                                             const std::vector<FlatUnit>& units) {
  return std::shared_ptr<StepMemory>(new StepMemory(group, units));
}

StepMemory::StepMemory(comm::Group& group, const std::vector<FlatUnit>& units)
    : rank_(group.rank()) {
  FULLSHARD_CHECK(registered);
  std::int64_t sum = 64;
  std::size_t parameters = 0;
  for (const FlatUnit& unit : units) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::int64_t elements = unit.layout.parameters()[i].numel;
      const std::int64_t bytes = elements * unit.element_bytes();
      sum += round_up(elements * FlatUnit::bytes_of(unit.exact_dtype()), 64) + 64;
      ++parameters;
      if (unit.parameters[i].tensor.requires_grad()) {
        sizes_.push_back(static_cast<std::size_t>(bytes));
      }
    }
  }
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  made_bytes_ = made_capacity(sum);
  const std::int64_t copy_bytes = round_up(2 * sum, kPage);  // first-fit may leave gaps
  row_ = made_bytes_ + copy_bytes;
  // Gradients wait for the other ranks as it happens; how many do so must not grow anything later.
  const std::size_t blocks = kUsualActivations + 2 * parameters;
  made_ = Arena(made_bytes_, blocks);
  copies_ = Arena(copy_bytes, parameters);
  segment_ = group.allocate_shared(static_cast<std::size_t>(row_ * group.size()),
                                   "activations and gradients");
  rows().add(at(rank_, 0), row_, *this);
}

StepMemory::~StepMemory() { rows().remove(*this); }

bool StepMemory::is_gradient_size(std::size_t bytes) const {
  return std::binary_search(sizes_.begin(), sizes_.end(), bytes);
}

c10::DataPtr StepMemory::try_make(std::size_t bytes, bool in_backward) {
  if (bytes < kLarge && !(in_backward && is_gradient_size(bytes))) return {};
  return take(made_, 0, static_cast<std::int64_t>(bytes));
}

at::Tensor StepMemory::make_copy(at::ScalarType dtype, at::IntArrayRef shape) {
  at::Tensor out = at::empty({0}, dtype);
  const auto bytes =
      static_cast<std::int64_t>(out.dtype().itemsize()) * c10::multiply_integers(shape);
  c10::DataPtr data = take(copies_, made_bytes_, bytes);
  FULLSHARD_CHECK(data != nullptr);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                             std::move(data));
  return out.set_(storage, 0, shape);
}

std::int64_t StepMemory::offset_of(const void* address) const {
  if (address == nullptr) return -1;
  const auto* byte = static_cast<const std::byte*>(address);
  const std::byte* row = at(rank_, 0);
  return byte >= row && byte < row + row_ ? byte - row : -1;
}

c10::DataPtr StepMemory::take(Arena& arena, std::int64_t base, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t offset = arena.allocate(bytes);
  if (offset == -1) return {};
  if (taken_++ == 0) self_ = shared_from_this();
  void* memory = at(rank_, base + offset);
  return {memory, memory, &return_made, at::kCPU};
}

bool StepMemory::try_return(void* data) {
  StepMemory* memory = rows().owner_of(data);
  if (memory != nullptr) memory->give_back(static_cast<const std::byte*>(data));
  return memory != nullptr;
}

void StepMemory::give_back(const std::byte* data) {
  std::shared_ptr<StepMemory> last;  // let go of after the lock
  const std::lock_guard lock(mutex_);
  const std::int64_t offset = data - at(rank_, 0);
  if (offset < made_bytes_) {
    made_.free(offset);
  } else {
    copies_.free(offset - made_bytes_);
  }
  if (--taken_ == 0) last = std::move(self_);
}

void StepMemory::trim() {
  const std::lock_guard lock(mutex_);
  const std::int64_t high_water = made_.take_high_water();
  touched_ = std::max(touched_, high_water);
  const std::int64_t needed = std::max(high_water, std::exchange(last_high_water_, high_water));
  if (touched_ - needed < kLeastTrimmed) return;
  segment_->discard(static_cast<std::size_t>(rank_ * row_ + needed),
                    static_cast<std::size_t>(touched_ - needed));
  touched_ = needed;
}

void make_tensors_in(const std::shared_ptr<StepMemory>& memory) {
  if (current.lock() != memory) current = memory;
}

}  // namespace fullshard::shard
