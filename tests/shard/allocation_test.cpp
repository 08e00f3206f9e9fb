#include <c10/util/ThreadLocalDebugInfo.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <link.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "fullshard/optim/adamw.h"
#include "fullshard/residency/paged_storage.h"
#include "support/networks.h"
#include "support/training.h"

// What the engine allocates in a step. ATen and autograd allocate too, on the same thread, so the
// counts are compared with those of the same model over paged storages that are always in place:
// the same operators through the same dispatcher fallback, and nothing else.

namespace {
thread_local long allocations = 0;
thread_local long* of_engine = nullptr;  // counts while it points somewhere

// Addresses of a loaded object: the program itself, or the one whose name ends like this.
struct Loaded {
  explicit Loaded(std::string_view ending) : name(ending) { dl_iterate_phdr(&Loaded::look, this); }
  static int look(dl_phdr_info* info, std::size_t, void* self) {
    auto& loaded = *static_cast<Loaded*>(self);
    const std::string_view file = info->dlpi_name;
    if (loaded.name.empty() ? !file.empty() : !file.ends_with(loaded.name)) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& part = info->dlpi_phdr[i];
      if (part.p_type != PT_LOAD) continue;
      const std::uintptr_t from = info->dlpi_addr + part.p_vaddr;
      loaded.begin = std::min(loaded.begin, from);
      loaded.end = std::max(loaded.end, from + part.p_memsz);
    }
    return 1;
  }
  bool has(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return at >= begin && at < end;
  }
  std::string_view name;
  std::uintptr_t begin = std::numeric_limits<std::uintptr_t>::max();
  std::uintptr_t end = 0;
};

// Whether whoever called operator new is in the engine's library.
bool engine_calls() {
  static const Loaded program("");
  static const Loaded engine("libfullshard.so");
  constexpr int kFrames = 5;  // some of the first are this program's
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  for (int i = 0; i < count; ++i) {
    if (!program.has(frames[i])) return engine.has(frames[i]);
  }
  return false;
}

void* allocate(std::size_t bytes) {
  ++allocations;
  if (long* count = std::exchange(of_engine, nullptr)) {
    if (engine_calls()) ++*count;
    of_engine = count;
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fullshard::shard {
namespace {

constexpr std::int64_t kDim = 8;
constexpr int kBlocks = 6;

// Blocks in a row, then an operator that uses parameters of two units at once.
struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(torch::nn::Linear(kDim, kDim));
    register_module("blocks_with_a_long_name", blocks);
  }
  torch::nn::LinearImpl& block(std::size_t i) { return *blocks[i]->as<torch::nn::Linear>(); }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x;
    for (std::size_t i = 0; i < blocks->size(); ++i) h = h + torch::tanh(block(i).forward(h));
    return at::linear(h, block(0).weight, block(kBlocks - 1).bias);
  }

  torch::nn::ModuleList blocks;
};

std::shared_ptr<Net> frozen_net() {
  const auto net = std::make_shared<Net>();
  for (at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
  return net;
}

long allocations_of(const std::function<void()>& body) {
  const long before = allocations;
  body();
  return allocations - before;
}

// Forward, and backward into the input, which reads every parameter again.
void step(Net& net, at::Tensor& x) {
  net.forward(x).sum().backward();
  x.mutable_grad().reset();
}

// Does what a pager cannot help doing: it has autograd call it at the end of a backward pass.
class AlwaysThere final : public residency::Pager {
 public:
  void use_together(std::span<residency::PagedStorage* const>) override {}
  void on_access(residency::PagedStorage&, residency::Access, std::string_view) override {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task == -1 || task == task_) return;
    task_ = task;
    torch::autograd::Engine::get_default_engine().queue_callback([token = token_] {});
  }

 private:
  int task_ = -1;
  std::shared_ptr<char> token_ = std::make_shared<char>();
};

long allocations_without_engine() {
  const auto net = frozen_net();
  AlwaysThere pager;
  std::vector<at::Tensor> values;
  std::vector<c10::intrusive_ptr<residency::PagedStorage>> storages;
  {
    const at::NoGradGuard no_grad;
    const residency::BypassScope bypass;
    int unit = 0;
    for (at::Tensor& parameter : net->parameters()) {
      values.push_back(parameter.detach().clone());
      storages.push_back(c10::make_intrusive<residency::PagedStorage>(
          "parameter", values.back().nbytes(), unit++ / 2));
      storages.back()->attach(&pager);
      storages.back()->map(values.back().mutable_data_ptr());
      parameter.set_data(residency::make_paged_tensor(storages.back(), at::kFloat,
                                                      parameter.sizes(), parameter.strides()));
    }
  }
  at::Tensor x = at::ones({2, kDim}).requires_grad_();
  for (int warm_up = 0; warm_up < 2; ++warm_up) step(*net, x);
  const long count = allocations_of([&] { step(*net, x); });
  for (const auto& storage : storages) storage->orphan();
  return count;
}

void expect_no_allocations(int ranks, const FullyShardOptions& sharding) {
  const long expected = allocations_without_engine();
  ASSERT_GT(expected, 0);  // the counter counts
  comm::run_as_threads(ranks, [&](comm::World& world) {
    const auto net = frozen_net();
    const auto sharded = fully_shard(net, world.mesh(), sharding);
    at::Tensor x = at::ones({2, kDim}).requires_grad_();
    for (int number = 1; number <= 10; ++number) {
      const std::int64_t gathers = sharded.counters().all_gathers;
      const long count = allocations_of([&] { step(*net, x); });
      EXPECT_GT(sharded.counters().all_gathers, gathers);
      if (number > 2) EXPECT_EQ(count, expected) << "in step " << number;
    }
  });
}

const WrapPolicy kUnits = wrap_modules<torch::nn::LinearImpl>();
constexpr std::int64_t kUnitBytes = (kDim * kDim + 2 * kDim) * 4;

TEST(Allocation, AStepThatFollowsItsScheduleMakesNone) {
  for (const int ranks : {1, 2, 3}) {
    expect_no_allocations(ranks, {.auto_wrap_policy = kUnits});
    expect_no_allocations(ranks, {.auto_wrap_policy = kUnits,
                                  .max_unsharded_bytes = 3 * kUnitBytes,
                                  .forward_prefetch = 1,
                                  .backward_prefetch = 2,
                                  .gather_bucket_bytes = 2 * kUnitBytes});
    expect_no_allocations(ranks, {.auto_wrap_policy = kUnits, .limit_all_gathers = false});
    expect_no_allocations(ranks, {.auto_wrap_policy = kUnits,
                                  .sharding_strategy = ShardingStrategy::SHARD_GRAD_OP,
                                  .keep_gathered = {"*.1"}});
  }
}

// A whole training step, by who calls operator new. That autograd be told of the end of a backward
// pass takes one.
TEST(Allocation, ATrainingStepMakesNoneOfTheEngines) {
  for (const int ranks : {1, 2}) {
    comm::run_as_threads(ranks, [&](comm::World& world) {
      const auto net = std::make_shared<Net>();
      const auto sharded = fully_shard(net, world.mesh(), {.auto_wrap_policy = kUnits});
      optim::AdamW optimizer(sharded.named_parameters(), {});
      const at::Tensor x = at::ones({64, kDim});
      for (int number = 1; number <= 8; ++number) {
        long count = 0;
        of_engine = &count;
        net->forward(x).sum().backward();
        optimizer.step();
        sharded.zero_grad();
        of_engine = nullptr;
        if (number == 1) EXPECT_GT(count, 10) << "the count does not count";
        if (number > 2) EXPECT_LE(count, 1) << "in step " << number << " of " << ranks << " ranks";
      }
    });
  }
}

// Counts what this thread takes from libtorch's allocator while it lives.
class TensorMemory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) ++count;
  }
  bool memoryProfilingEnabled() const override { return true; }
  long count = 0;
};

long tensors_made_by(const std::function<void()>& body) {
  const auto memory = std::make_shared<TensorMemory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  body();
  return memory->count;
}

// Where ranks send messages, buffers are used again. What autograd makes is made unsharded too.
TEST(Allocation, OverMessagesATrainingStepMakesNoBuffers) {
  const at::Tensor x = at::ones({64, kDim});
  const auto tensors_a_step = [&](Net& net, torch::optim::Optimizer& optimizer) {
    return tensors_made_by([&] {
      net.forward(x).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    });
  };
  const auto plain = std::make_shared<Net>();
  torch::optim::SGD stock(plain->parameters(), torch::optim::SGDOptions(0.01));
  tensors_a_step(*plain, stock);
  const long expected = tensors_a_step(*plain, stock);
  ASSERT_GT(expected, 0);
  const std::vector<FullyShardOptions> choices = {{.auto_wrap_policy = kUnits},
                                                  {.auto_wrap_policy = kUnits,
                                                   .gather_bucket_bytes = 2 * kUnitBytes,
                                                   .reduce_bucket_bytes = 2 * kUnitBytes},
                                                  {.auto_wrap_policy = kUnits, .dynamic = true}};
  testing::run_over_gloo(2, [&](comm::World& world) {
    for (const FullyShardOptions& sharding : choices) {
      const auto net = std::make_shared<Net>();
      const auto sharded = fully_shard(net, world.mesh(), sharding);
      torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.01));
      // The memory of each unit's reduced gradients comes and goes with the shards' .grad.
      const long units = static_cast<long>(sharded.counters().units.size());
      // How many buffers are on their way at a time depends on the network, so later steps may need
      // some more, but no step needs any that none before it did.
      constexpr int kSteps = 40;
      long more = 0;
      for (int number = 1; number <= kSteps; ++number) {
        const long made = tensors_a_step(*net, optimizer);
        if (number > 2) more += made - expected - units;
      }
      EXPECT_GE(more, 0);
      EXPECT_LE(more, 4 * units);
    }
  });
}

// With gradients and an update the reducer and the optimizer take part; then what counts is that
// a step costs the same however many came before it.
TEST(Allocation, TrainingStepsCostTheSameFromTheThirdOn) {
  comm::World world = comm::single_rank();
  const auto net = std::make_shared<Net>();
  const auto sharded = fully_shard(net, world.mesh(), {.auto_wrap_policy = kUnits});
  torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.01));
  const at::Tensor x = at::ones({2, kDim});
  std::vector<long> counts;
  for (int number = 1; number <= 10; ++number) {
    counts.push_back(allocations_of([&] {
      net->forward(x).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    }));
  }
  for (std::size_t i = 3; i < counts.size(); ++i) EXPECT_EQ(counts[i], counts[2]) << "step " << i;
  EXPECT_LT(counts[2], counts[0]);
}

}  // namespace
}  // namespace fullshard::shard
