#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>

#include "fullshard/models/gpt.h"

// What activation checkpointing is for: bytes of tensors that are alive at once.

namespace fullshard::recompute {
namespace {

// Hears of all memory of tensors that this thread takes and gives back while it is installed.
class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device) override {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t live() const { return live_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

struct Bytes {
  std::int64_t when_backward_begins = 0;
  std::int64_t peak = 0;
};

constexpr std::int64_t kLayers = 8;
constexpr std::int64_t kDim = 32;
constexpr std::int64_t kTokens = 8 * 64;

// Gradients exist already, so that what is measured is activations.
Bytes measure(std::int64_t recompute_every) {
  torch::manual_seed(1);
  models::Gpt model(models::GptOptions{.vocab_size = 16,
                                       .seq_len = 64,
                                       .dim = kDim,
                                       .n_layers = kLayers,
                                       .n_heads = 2,
                                       .recompute_every = recompute_every});
  const at::Tensor tokens = torch::randint(16, {8, 64}, at::kLong);
  model->loss(tokens, tokens).backward();
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  const at::Tensor loss = model->loss(tokens, tokens);
  Bytes out{.when_backward_begins = meter->live()};
  loss.backward();
  out.peak = meter->peak();
  return out;
}

// docs/design/memory.md: 16.5 d a token and block, or d where it is recomputed.
TEST(Memory, ActivationsOfRecomputedBlocksAreTheirInputs) {
  constexpr double kUnit = 4.0 * kTokens * kDim;
  const Bytes kept = measure(0);
  for (const std::int64_t every : {1, 2, 4}) {
    const Bytes again = measure(every);
    const double blocks = static_cast<double>(kLayers) / static_cast<double>(every);
    const auto saved =
        static_cast<double>(kept.when_backward_begins - again.when_backward_begins) / kUnit;
    EXPECT_NEAR(saved, 15.5 * blocks, 1.0 * blocks) << every;
    EXPECT_LT(again.peak, kept.peak);
  }
}

TEST(Memory, ThePeakIsOneBlockAndTheInputsOfAll) {
  constexpr double kUnit = 4.0 * kTokens * kDim;
  const Bytes kept = measure(0);
  const Bytes again = measure(1);
  // A block with its gradients on top of its predecessors' inputs.
  EXPECT_LT(static_cast<double>(again.peak) / kUnit, kLayers + 16.5 + 16.5);
  EXPECT_GT(static_cast<double>(kept.peak) / kUnit, 15 * kLayers);
}

}  // namespace
}  // namespace fullshard::recompute
