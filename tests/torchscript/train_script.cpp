// train_script FOLDER STEPS [RANKS]: trains the TorchScript module FOLDER/model.pt on the batches
// of FOLDER/data.pt, sharded, and writes FOLDER/trained.pt (the module, for Python) and
// FOLDER/results.pt (a dictionary: outputs of the trained module, loss by step). With RANKS the
// ranks are threads of this process; without, it is one rank of the job that launched it.

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "fullshard/fullshard.h"

namespace {

struct Task {
  std::string folder;
  int steps;
};

// The rows of one step's global batch that belong to a rank.
at::Tensor rows_of_rank(const at::Tensor& batch, const fullshard::World& world) {
  return batch.tensor_split(world.size()).at(static_cast<std::size_t>(world.rank()));
}

double mean_over_ranks(fullshard::World& world, double value) {
  using namespace fullshard;
  world.group()
      .all_reduce({&value, 1, base::DType::kFloat64}, comm::ReduceOp::kMean, {"loss", 0})
      .wait();
  return value;
}

void write_results(const std::string& path, const at::Tensor& outputs,
                   const std::vector<double>& losses) {
  c10::Dict<std::string, at::Tensor> results;
  results.insert("outputs", outputs);
  results.insert("losses", torch::tensor(losses, at::kDouble));
  const std::vector<char> bytes = torch::jit::pickle_save(results);
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void train(const Task& task, fullshard::World& world) {
  torch::jit::Module model = torch::jit::load(task.folder + "/model.pt");
  const torch::jit::Module data = torch::jit::load(task.folder + "/data.pt");
  const at::Tensor tokens = data.attr("tokens").toTensor();
  const at::Tensor targets = data.attr("targets").toTensor();

  const auto sharded = fullshard::fully_shard(
      model, world.mesh(), {.auto_wrap_policy = fullshard::shard::wrap_classes({"Layer"})});
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < task.steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor out = model.forward({rows_of_rank(tokens[step], world)}).toTensor();
    const at::Tensor loss = (out - rows_of_rank(targets[step], world)).pow(2).mean();
    loss.backward();
    sharded.clip_grad_norm_(1.0);
    optimizer.step();
    losses.push_back(mean_over_ranks(world, loss.item<double>()));
  }

  const auto whole = sharded.unsharded();  // on all ranks, although one writes
  if (world.rank() != 0) return;
  model.save(task.folder + "/trained.pt");
  const at::NoGradGuard no_grad;
  write_results(task.folder + "/results.pt", model.forward({tokens[0]}).toTensor(), losses);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  at::set_num_threads(1);
  const Task task{argv[1], std::stoi(argv[2])};
  try {
    if (argc > 3) {
      fullshard::comm::run_as_threads(std::stoi(argv[3]),
                                      [&](fullshard::World& world) { train(task, world); });
    } else {
      auto world = fullshard::World::init();
      train(task, world);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
