#include "fullshard/optim/element_state.h"

#include <utility>

#include "fullshard/base/error.h"
#include "optim/param_state.h"

namespace fullshard::optim {
namespace {

using Tensors = std::vector<std::vector<at::Tensor>>;

class StockState final : public state::ElementState {
 public:
  explicit StockState(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  std::string name() const override { return "the optimizer's state"; }

  Tensors tensors(std::span<const state::ShardedTensor> shards) override {
    Tensors out;
    for (const state::ShardedTensor& shard : shards) {
      out.emplace_back(kElementTensors);
      const std::vector<at::Tensor*> kept = kept_for(shard);
      for (std::size_t kind = 0; kind < kept.size(); ++kind) {
        if (kept[kind] != nullptr) out.back()[kind] = *kept[kind];
      }
    }
    return out;
  }

  void replace(std::span<const state::ShardedTensor> shards, Tensors tensors) override {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::vector<at::Tensor*> kept = kept_for(shards[i]);
      for (std::size_t kind = 0; kind < kept.size(); ++kind) {
        if (kept[kind] != nullptr) *kept[kind] = std::move(tensors[i][kind]);
      }
    }
  }

 private:
  std::vector<at::Tensor*> kept_for(const state::ShardedTensor& shard) const {
    const auto found = optimizer_.state().find(shard.tensor.unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) return {};
    if (const auto kept = element_tensors(*found->second)) return *kept;
    throw base::Error(base::ErrorCode::kMisuse,
                      "shards cannot be moved with this optimizer's state, which is not that of an "
                      "optimizer of libtorch that works element by element; implement "
                      "state::ElementState for it");
  }

  torch::optim::Optimizer& optimizer_;
};

class AdamWState final : public state::ElementState {
 public:
  explicit AdamWState(AdamW& optimizer) : optimizer_(optimizer) {}

  std::string name() const override { return "AdamW's moments"; }

  Tensors tensors(std::span<const state::ShardedTensor> shards) override {
    Tensors out;
    for (const state::ShardedTensor& shard : shards) {
      const auto moments = optimizer_.moments_of(shard.tensor);
      out.push_back({moments.first, moments.second});
    }
    return out;
  }

  void replace(std::span<const state::ShardedTensor> shards, Tensors tensors) override {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      optimizer_.replace(shards[i], std::move(tensors[i][0]), std::move(tensors[i][1]));
    }
  }

 private:
  AdamW& optimizer_;
};

}  // namespace

std::unique_ptr<state::ElementState> element_state(torch::optim::Optimizer& optimizer) {
  return std::make_unique<StockState>(optimizer);
}

std::unique_ptr<state::ElementState> element_state(AdamW& optimizer) {
  return std::make_unique<AdamWState>(optimizer);
}

}  // namespace fullshard::optim
