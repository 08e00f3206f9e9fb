// throwing_rank BACKEND: one rank of a sharded training, over shm, hosts (of two ranks each) or
// gloo. Rank 2 throws in the forward of its third step.

#include <torch/torch.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

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

comm::CommOptions options_for(const std::string& backend) {
  comm::CommOptions options{.interface = "lo"};
  if (backend == "gloo") options.backend = comm::BackendChoice::kGloo;
  if (backend == "hosts") options.host = *std::getenv("RANK") < '2' ? "alpha" : "beta";
  return options;
}

void train(const comm::CommOptions& options) {
  comm::World world = comm::World::init(options);
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

int main(int, char** argv) {
  at::set_num_threads(1);
  try {
    train(options_for(argv[1]));
  } catch (const std::exception& error) {
    base::report_error(error);
  }
  return 1;
}
