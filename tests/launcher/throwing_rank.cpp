// throwing_rank BACKEND FILE: one rank of a sharded training, over shm, hosts (of two ranks each)
// or gloo. Rank 2 throws in the forward of its third step, after making the file.

#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
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
    if (!bad_sample.empty()) {
      std::ofstream{bad_sample};
      throw std::runtime_error("bad sample 17");
    }
    return layers[1]->as<torch::nn::Linear>()->forward(hidden);
  }

  torch::nn::ModuleList layers{torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)};
  std::string bad_sample;  // the file to make then; empty: the samples are good
};

comm::CommOptions options_for(const std::string& backend) {
  comm::CommOptions options{.interface = "lo"};
  if (backend == "gloo") options.backend = comm::BackendChoice::kGloo;
  if (backend == "hosts") options.host = *std::getenv("RANK") < '2' ? "alpha" : "beta";
  return options;
}

void train(const comm::CommOptions& options, const std::string& file) {
  comm::World world = comm::World::init(options);
  const auto net = std::make_shared<Net>();
  const auto sharded = shard::fully_shard(net, world.mesh());
  torch::optim::SGD optimizer(sharded.parameters(), 0.01);
  for (int step = 1;; ++step) {
    if (world.rank() == 2 && step == 3) net->bad_sample = file;
    optimizer.zero_grad();
    net->forward(torch::ones({4, 8})).mean().backward();
    optimizer.step();
  }
}

}  // namespace

int main(int, char** argv) {
  at::set_num_threads(1);
  try {
    train(options_for(argv[1]), argv[2]);
  } catch (const std::exception& error) {
    base::report_error(error);
  }
  return 1;
}
