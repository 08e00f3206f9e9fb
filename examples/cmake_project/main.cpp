// A program of its own that uses an installed fullshard: learns in which pair of opposite quadrants
// a point lies, with parameters, gradients and optimizer state sharded over the ranks.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=/where/fullshard/is && cmake --build build
//   build/train_quadrants                                      one rank
//   torchrun --no-python --nproc-per-node 2 build/train_quadrants
//
// Expect "loss before 0.69.., after 0.0..", the same for any number of ranks that divides 512.

#include <fullshard/fullshard.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  auto world = fullshard::World::init();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  auto sharded = fullshard::fully_shard(
      model, world.mesh(), {.auto_wrap_policy = fullshard::wrap_modules<torch::nn::LinearImpl>()});
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));

  const auto points = torch::rand({512, 2}) * 2 - 1;  // the same on every rank
  const auto labels = (points.prod(1, true) > 0).to(torch::kFloat);
  const auto my_points = points.chunk(world.size()).at(world.rank());
  const auto my_labels = labels.chunk(world.size()).at(world.rank());
  const auto whole_loss = [&] {
    torch::NoGradGuard no_grad;
    return torch::binary_cross_entropy_with_logits(model->forward(points), labels).item<double>();
  };

  const double before = whole_loss();
  for (int step = 0; step < 200; ++step) {
    torch::binary_cross_entropy_with_logits(model->forward(my_points), my_labels).backward();
    sharded.clip_grad_norm_(1.0);
    optimizer.step();
    sharded.zero_grad();
  }
  const double after = whole_loss();
  if (world.rank() == 0) std::printf("loss before %.4f, after %.4f\n", before, after);
}
