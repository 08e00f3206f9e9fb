// One rank of a sharded training. Rank 2 throws in the forward of its third step.

#include <torch/torch.h>

#include <stdexcept>

#include "fullshard/base/error_report.h"
#include "fullshard/comm/world.h"
#include "fullshard/shard/fully_shard.h"

namespace {

using namespace fullshard;

struct Net : torch::nn::Module {
  Net() { register_module("layers", layers); }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = layers[0]->as<torch::nn::Linear>()->forward(x);
    if (bad_sample) throw std::runtime_error("bad sample 17");
    return layers[1]->as<torch::nn::Linear>()->forward(hidden);
  }

  torch::nn::ModuleList layers{torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)};
  bool bad_sample = false;
};

void train() {
  comm::World world = comm::World::init();
  const auto net = std::make_shared<Net>();
  const auto sharded = shard::fully_shard(net, world.mesh());
  torch::optim::SGD optimizer(sharded.parameters(), 0.01);
  for (int step = 1;; ++step) {
    net->bad_sample = world.rank() == 2 && step == 3;
    optimizer.zero_grad();
    net->forward(torch::ones({4, 8})).mean().backward();
    optimizer.step();
  }
}

}  // namespace

int main() {
  at::set_num_threads(1);
  try {
    train();
  } catch (const std::exception& error) {
    base::report_error(error);
  }
  return 1;
}
