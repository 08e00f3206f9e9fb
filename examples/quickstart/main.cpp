#include <fullshard/fullshard.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto world = fullshard::World::init();  // torchrun, the fullshard launcher, or alone
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  auto sharded = fullshard::fully_shard(model, world.mesh());
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 1; step <= 200; ++step) {
    auto x = torch::randn({64, 8}).chunk(world.size()).at(world.rank());  // this rank's rows
    auto loss = torch::mse_loss(model->forward(x), x.sum(1, true).sin());
    loss.backward();               // gradients are averaged over ranks, and sharded
    sharded.clip_grad_norm_(1.0);  // one norm over all ranks
    optimizer.step();              // any element-wise optimizer, on this rank's shards
    optimizer.zero_grad();
    if (world.rank() == 0 && step % 50 == 0) std::cout << loss.item<float>() << "\n";
  }
}
