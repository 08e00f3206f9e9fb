#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "fullshard/comm/world.h"
#include "fullshard/optim/adamw.h"
#include "fullshard/shard/fully_shard.h"

// Training the same thing twice: as one unsharded process (REF) and sharded over ranks.

namespace fullshard::testing {

/// A model that turns a batch into a scalar mean loss over its rows.
struct Model : torch::nn::Module {
  virtual at::Tensor loss(const at::Tensor& x, const at::Tensor& y) = 0;
};

struct Batch {
  at::Tensor x;
  at::Tensor y;
};

/// A model and its data. `build` gives equal weights each time; `batch(step)` is the global batch,
/// whose first dimension every tested world divides.
struct Problem {
  std::function<std::shared_ptr<Model>()> build;
  std::function<Batch(std::int64_t)> batch;
};

/// A Problem's `build` for a model of one's own: seeded, one at a time, because ranks as threads
/// share torch's default generator.
std::shared_ptr<Model> build_seeded(const std::function<std::shared_ptr<Model>()>& make);

/// Linear, ReLU, ..., Linear over the given widths; 12 rows.
Problem mlp_problem(std::vector<std::int64_t> widths, at::ScalarType dtype = at::kDouble);

/// Token table, pre-norm blocks, final norm, head (tied or not); 12 sequences of 8 tokens. Every
/// block is a member of a ModuleList.
Problem gpt_problem(std::int64_t vocab, std::int64_t dim, std::int64_t layers, bool tied = false,
                    at::ScalarType dtype = at::kDouble);

/// Runs one block of a gpt_problem's model by itself on [rows, tokens, dim].
at::Tensor run_block(Model& model, std::size_t block, const at::Tensor& x);

enum class Optimizer { kSgd, kAdam, kAdamW, kFusedAdamW };

struct TrainOptions {
  std::int64_t steps = 3;
  Optimizer optimizer = Optimizer::kAdamW;
  double max_norm = 0;  ///< 0 = no clipping
  double norm_type = 2;
  std::function<void(std::int64_t step, double norm)> on_norm = nullptr;
};

/// Parameters after unsharded training on the whole batches with a stock optimizer.
shard::StateDict train_reference(const Problem& problem, const TrainOptions& options = {});

/// The same over the ranks of `world`, each on its rows; full parameters, on every rank.
shard::StateDict train_sharded(const Problem& problem, comm::World& world,
                               const shard::FullyShardOptions& sharding,
                               const TrainOptions& options = {},
                               const comm::MeshOptions& mesh = {});

/// Trains `sharded` in place, as train_sharded does.
void train_steps(Model& model, const shard::ShardedModule& sharded, comm::World& world,
                 const Problem& problem, const TrainOptions& options);

/// Rows of the global batch that belong to a rank.
Batch rows_of_rank(const Batch& batch, int rank, int size);

/// An optimizer of libtorch over the given parameters, with the settings every test here uses.
std::unique_ptr<torch::optim::Optimizer> stock_optimizer(Optimizer kind,
                                                         const std::vector<at::Tensor>& parameters);

/// Ours, over the parts of this rank, with the same settings.
optim::AdamW fused_adamw(const shard::ShardedModule& sharded);

/// The parameters, a tied one once: torch::nn::Module::parameters() lists it under each of its
/// names.
std::vector<at::Tensor> unique_parameters(const torch::nn::Module& module);

shard::StateDict parameters_of(const torch::nn::Module& module);

/// The same names, and values within `tolerance` relative to the larger of 1 and the expected
/// value.
void expect_match(const shard::StateDict& actual, const shard::StateDict& expected,
                  double tolerance);

void expect_bitwise_equal(const shard::StateDict& actual, const shard::StateDict& expected);

}  // namespace fullshard::testing
