// Strategies by parameter on a mesh of replicas, under a budget. Run it with 4 ranks, for instance
//   torchrun --no-python --nproc-per-node 4 build/release/examples/example_strategies
// or with 2 or 1. It prints who owns what, then a loss that falls from about 1 to below 0.1.
#include <fullshard/fullshard.h>
#include <torch/torch.h>

#include <iostream>

namespace {

constexpr int kDim = 32;
constexpr int kHeads = 8;

// Attention over 6 positions, then an MLP, around normalisations.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(torch::nn::LayerNormOptions({kDim})),
        qkv(kDim, 3 * kDim),
        projection(kDim, kDim),
        up(kDim, 4 * kDim),
        down(4 * kDim, kDim) {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) {
    auto heads = qkv(norm(x)).view({-1, 6, 3, kHeads, kDim / kHeads}).permute({2, 0, 3, 1, 4});
    auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
    x = x + projection(mixed.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(x)));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, projection, up, down;
};
TORCH_MODULE(Block);

fullshard::FullyShardOptions options_for(bool replicated) {
  using fullshard::Atom;
  using fullshard::ShardingStrategy;
  const int head = kDim / kHeads;
  return {
      .auto_wrap_policy =
          fullshard::with_groups(fullshard::wrap_modules<BlockImpl>(), {{"0", "5"}}),
      .sharding_strategy =
          replicated ? ShardingStrategy::HYBRID_SHARD : ShardingStrategy::FULL_SHARD,
      .rules =
          {// Normalisations are small: every rank has them.
           fullshard::rule_for<torch::nn::LayerNormImpl>({.strategy = ShardingStrategy::NO_SHARD}),
           // The last block as a whole on one rank.
           {.pattern = "4.*", .atom = Atom::kUnit},
           // The others: attention between heads, or groups of four of them, and of an MLP rows of
           // the one matrix and columns of the other.
           {.pattern = "*qkv.weight", .atom = Atom::kRow, .group = head},
           {.pattern = "*projection.weight", .atom = Atom::kColumn, .group = 4 * head},
           {.pattern = "*up.weight", .atom = Atom::kRow},
           {.pattern = "*down.weight", .atom = Atom::kColumn}},
      .max_unsharded_bytes = 160 << 10,  // three blocks
      .keep_gathered = {"4"},            // used last and first: its backward needs no second gather
  };
}

}  // namespace

int main() {
  auto world = fullshard::World::init();
  const bool replicated = world.size() % 2 == 0;
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(4, kDim), Block(), Block(), Block(), Block(),
                              torch::nn::Linear(kDim, 1));
  fullshard::FullyShardedDataParallel<torch::nn::SequentialImpl> sharded(
      model.ptr(), world.mesh({.replicate = replicated ? 2 : 1}), options_for(replicated));
  if (world.rank() == 0) std::cout << sharded.describe() << "\n";

  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 1; step <= 45; ++step) {
    auto x = torch::randn({48, 6, 4}).chunk(world.size()).at(world.rank());
    auto y = x.sum({1, 2}) / 5;  // depends on all positions
    auto loss = torch::mse_loss(sharded(x).mean(1).squeeze(1), y);
    loss.backward();
    sharded.clip_grad_norm_(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (world.rank() == 0 && step % 15 == 0) std::cout << loss.item<float>() << "\n";
  }
  const auto counters = sharded.counters();
  if (world.rank() == 0) {
    std::cout << "gathered at once: at most " << counters.peak_unsharded_bytes << " bytes\n";
  }
}
