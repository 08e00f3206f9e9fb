#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fullshard/recompute/checkpoint.h"
#include "support/equality.h"
#include "support/networks.h"

// H: activation checkpointing of sharded models.

namespace fullshard::recompute {
namespace {

using shard::FullyShardOptions;
using shard::ShardingStrategy;
using testing::Batch;
using testing::EqualityOptions;
using testing::Problem;
using testing::Turn;

constexpr std::int64_t kVocab = 32;
constexpr std::int64_t kDim = 16;
constexpr std::int64_t kLayers = 3;

enum class Where {
  kNowhere,
  kAround,  ///< one region a block
  kInside,  ///< of each block, its MLP
  kBoth,    ///< that inside the other
  kAll,     ///< all blocks in one region
};

const std::vector<Where> kEverywhere = {Where::kAround, Where::kInside, Where::kBoth, Where::kAll};

struct Attention : torch::nn::Module {
  Attention() : norm(torch::nn::LayerNormOptions({kDim})), value(kDim, kDim) {
    register_module("norm", norm);
    register_module("value", value);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm(x);
    return at::scaled_dot_product_attention(h, h, value(h), {}, 0.0, true);
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear value;
};

struct Mlp : torch::nn::Module {
  Mlp() : up(kDim, 2 * kDim), down(2 * kDim, kDim) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    EXPECT_EQ(up->weight.sizes(), (std::vector<std::int64_t>{2 * kDim, kDim}));
    return down(torch::gelu(up(x)));
  }
  torch::nn::Linear up, down;
};

struct Block : torch::nn::Module {
  Block() : norm(torch::nn::LayerNormOptions({kDim})) {
    register_module("attention", attention);
    register_module("norm", norm);
    register_module("mlp", mlp);
  }
  at::Tensor forward(const at::Tensor& x, bool inside) {
    const at::Tensor h = x + attention->forward(x);
    const at::Tensor normed = norm(h);
    if (!inside) return h + mlp->forward(normed);
    return h + checkpoint([mlp = mlp](const at::Tensor& in) { return mlp->forward(in); }, normed);
  }
  std::shared_ptr<Attention> attention = std::make_shared<Attention>();
  torch::nn::LayerNorm norm;
  std::shared_ptr<Mlp> mlp = std::make_shared<Mlp>();
};

struct Decoder : testing::Model {
  Decoder() : table(kVocab, kDim), norm(torch::nn::LayerNormOptions({kDim})) {
    register_module("table", table);
    register_module("blocks", blocks);
    for (std::int64_t i = 0; i < kLayers; ++i) blocks->push_back(std::make_shared<Block>());
    register_module("norm", norm);
    to(at::kDouble);
  }

  at::Tensor encode(const at::Tensor& tokens) {
    at::Tensor h = table(tokens);
    if (where == Where::kAll) return checkpoint([this](at::Tensor x) { return through(x); }, h);
    return through(h);
  }

  at::Tensor through(at::Tensor h) {
    const bool around = where == Where::kAround || where == Where::kBoth;
    const bool inside = where == Where::kInside || where == Where::kBoth;
    for (const auto& module : *blocks) {
      const auto block = std::dynamic_pointer_cast<Block>(module);
      const auto run = [=](const at::Tensor& x) { return block->forward(x, inside); };
      h = around ? checkpoint(run, h) : run(h);
    }
    return h;
  }

  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor logits = at::linear(norm(encode(x)), table->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
  }

  Where where = Where::kNowhere;
  torch::nn::Embedding table;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
};

Problem decoder_problem(bool half_frozen = false) {
  Problem task = testing::gpt_problem(kVocab, kDim, kLayers);
  task.build = [=] {
    const auto model = testing::build_seeded([] { return std::make_shared<Decoder>(); });
    bool frozen = false;
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.set_requires_grad(!(half_frozen && std::exchange(frozen, !frozen)));
    }
    return model;
  };
  return task;
}

Decoder& decoder(testing::Model& model, Where where) {
  auto& out = dynamic_cast<Decoder&>(model);
  out.where = where;
  return out;
}

testing::Passes training(Where where) {
  return [=](testing::Model& model, const Batch& batch, const Turn&) {
    decoder(model, where).loss(batch.x, batch.y).backward();
  };
}

// Units: blocks; the parts of blocks as well, which leaves a block its second norm.
const shard::WrapPolicy kBlocks = shard::wrap_modules<Block>();
const shard::WrapPolicy kNested = shard::wrap_modules<Block, Attention, Mlp>();

void expect_match_everywhere(const Problem& task, FullyShardOptions sharding, bool everywhere) {
  const auto expected = testing::train_passes(task, training(Where::kNowhere));
  for (const auto& policy : {kBlocks, kNested}) {
    sharding.auto_wrap_policy = policy;
    for (const Where where : kEverywhere) {
      SCOPED_TRACE(static_cast<int>(where));
      testing::expect_passes_give(expected, task, training(where),
                                  {.sharding = sharding, .everywhere = everywhere});
    }
  }
}

TEST(Recompute, H1_RegionsAroundAndInsideUnitsMatch) {
  expect_match_everywhere(decoder_problem(), {}, true);
}

TEST(Recompute, H1_RegionsOfHalfFrozenUnitsMatch) {
  expect_match_everywhere(decoder_problem(true), {}, true);
}

TEST(Recompute, H1_UnderOtherStrategies) {
  for (const auto strategy : {ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    SCOPED_TRACE(static_cast<int>(strategy));
    expect_match_everywhere(decoder_problem(), {.sharding_strategy = strategy}, false);
  }
}

std::int64_t largest_unit(const shard::WrapPolicy& policy) {
  comm::World world = comm::single_rank();
  const auto sharded =
      shard::fully_shard(decoder_problem().build(), world.mesh(), {.auto_wrap_policy = policy});
  std::int64_t largest = 0;
  for (const auto& unit : sharded.counters().units) largest = std::max(largest, unit.bytes);
  return largest;
}

TEST(Recompute, H1_UnderALimit) {
  const std::int64_t limit = largest_unit(kBlocks) * 3 / 2;
  for (const int depth : {0, 1}) {
    expect_match_everywhere(
        decoder_problem(),
        {.max_unsharded_bytes = limit, .forward_prefetch = depth, .backward_prefetch = depth},
        /*everywhere=*/depth > 0);
  }
}

// What one step costs, once its plan is made.
struct Cost {
  std::map<std::string, std::int64_t> gathers;
  std::map<std::string, std::int64_t> reductions;
  std::int64_t copied_bytes = 0;  // of gradients
};

Cost cost_of_step(comm::World& world, const Problem& task, const testing::Passes& passes,
                  const FullyShardOptions& sharding) {
  const auto model = task.build();
  const auto sharded = shard::fully_shard(model, world.mesh(), sharding);
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
  constexpr std::int64_t kSteps = 4;
  shard::Counters before;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    before = sharded.counters();
    optimizer->zero_grad();
    passes(*model, testing::rows_of_rank(task.batch(step), world.rank(), world.size()), {});
    optimizer->step();
  }
  const shard::Counters after = sharded.counters();
  Cost cost;
  cost.copied_bytes = after.copied_gradient_bytes - before.copied_gradient_bytes;
  for (std::size_t u = 0; u < after.units.size(); ++u) {
    const shard::UnitCounters &now = after.units[u], &then = before.units[u];
    cost.gathers[now.name] = now.all_gathers - then.all_gathers;
    cost.reductions[now.name] = now.reduce_scatters - then.reduce_scatters;
  }
  return cost;
}

void expect_one_reduction(const Cost& cost) {
  for (const auto& [name, count] : cost.reductions) EXPECT_EQ(count, 1) << name;
}

void expect_counts(const FullyShardOptions& sharding, Where where, std::int64_t gathers) {
  SCOPED_TRACE(static_cast<int>(where));
  testing::run_both_ways(2, [&](comm::World& world) {
    const Cost cost = cost_of_step(world, decoder_problem(), training(where), sharding);
    for (const auto& [name, count] : cost.gathers) EXPECT_EQ(count, gathers) << name;
    expect_one_reduction(cost);
  });
}

TEST(Recompute, GradientsAreMadeWhereOtherRanksReadThem) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto copied = [&](Where where) {
      return cost_of_step(world, decoder_problem(), training(where), {.auto_wrap_policy = kBlocks})
          .copied_bytes;
    };
    const std::int64_t plainly = copied(Where::kNowhere);
    for (const Where where : kEverywhere) EXPECT_EQ(copied(where), plainly);
  });
}

TEST(Recompute, H3_TwoGathersAndOneReductionAUnit) {
  for (const Where where : kEverywhere) {
    expect_counts({.auto_wrap_policy = kBlocks}, where, 2);
    expect_counts(
        {.auto_wrap_policy = kBlocks, .sharding_strategy = ShardingStrategy::SHARD_GRAD_OP}, where,
        1);
  }
}

TEST(Recompute, H3_OfNestedUnits) {
  for (const Where where : kEverywhere) {
    for (const int depth : {0, 2}) {
      expect_counts(
          {.auto_wrap_policy = kNested, .forward_prefetch = depth, .backward_prefetch = depth},
          where, 2);
    }
  }
}

// Two views of the rows through one encoder, as self-supervised training does.
testing::Passes two_crops(Where where) {
  return [=](testing::Model& model, const Batch& batch, const Turn&) {
    Decoder& encoder = decoder(model, where);
    const at::Tensor first = encoder.encode(batch.x.narrow(1, 0, 5));
    const at::Tensor second = encoder.encode(batch.x.narrow(1, 3, 5));
    ((first * second).mean() + first.pow(2).mean()).backward();
  };
}

TEST(Recompute, H6_OneEncoderForTwoCrops) {
  const Problem task = decoder_problem();
  const auto expected = testing::train_passes(task, two_crops(Where::kNowhere));
  for (const Where where : kEverywhere) {
    SCOPED_TRACE(static_cast<int>(where));
    testing::expect_passes_give(expected, task, two_crops(where),
                                {.sharding = {.auto_wrap_policy = kBlocks}, .everywhere = true});
    testing::run_both_ways(2, [&](comm::World& world) {
      expect_one_reduction(
          cost_of_step(world, task, two_crops(where), {.auto_wrap_policy = kBlocks}));
    });
  }
}

shard::StateDict train_in_bf16(comm::World& world, Where where) {
  const Problem task = decoder_problem();
  const auto model = task.build();
  Decoder& net = decoder(*model, where);
  const auto sharded = shard::fully_shard(
      model, world.mesh(),
      {.auto_wrap_policy = kBlocks, .mixed_precision = {.param_dtype = at::kBFloat16}});
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kAdam, sharded.parameters());
  for (std::int64_t step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    const auto rows = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
    const at::Tensor out = net.through(net.table(rows.x).to(at::kFloat));
    at::cross_entropy_loss(at::linear(net.norm(out), net.table->weight).flatten(0, 1),
                           rows.y.flatten())
        .backward();
    optimizer->step();
  }
  return sharded.full_state_dict();
}

TEST(Recompute, H5_InputsOfAnotherTypeAreCastTheSecondTimeToo) {
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto expected = train_in_bf16(world, Where::kNowhere);
    for (const Where where : {Where::kAround, Where::kInside, Where::kBoth}) {
      testing::expect_bitwise_equal(train_in_bf16(world, where), expected);
    }
  });
}

// Bytes of pieces kept when backward has come through all blocks.
std::int64_t pieces_after_blocks(comm::World& world, Where where) {
  const Problem task = decoder_problem();
  const auto model = task.build();
  Decoder& net = decoder(*model, where);
  const auto sharded = shard::fully_shard(
      model, world.mesh(), {.auto_wrap_policy = kBlocks, .reshard_after_forward = 2});
  std::int64_t kept = 0;
  for (std::int64_t step = 0; step < 2; ++step) {
    const at::Tensor h = net.table(task.batch(step).x);
    h.register_hook([&](const at::Tensor&) { kept = sharded.counters().resharded_bytes; });
    net.through(h).sum().backward();
  }
  return kept;
}

// Ranks that run a block again and ranks that do not must gather it from the same ranks.
TEST(Recompute, RunningAgainKeepsNoPieces) {
  testing::run_over_gloo(4, [&](comm::World& world) {
    const std::int64_t plainly = pieces_after_blocks(world, Where::kNowhere);
    EXPECT_GT(plainly, 0);
    EXPECT_EQ(pieces_after_blocks(world, Where::kAround), plainly);
  });
}

TEST(Recompute, SecondOrderGradientsOfShardedModels) {
  const auto penalty = [](Where where) {
    return [=](testing::Model& model, const Batch& batch, const Turn&) {
      Decoder& net = decoder(model, where);
      const at::Tensor h = at::sin(net.table(batch.x));
      const at::Tensor out = where == Where::kNowhere
                                 ? net.through(h)
                                 : checkpoint([&net](at::Tensor x) { return net.through(x); }, h);
      const at::Tensor slope =
          torch::autograd::grad({out.pow(2).sum()}, {h}, {}, /*retain_graph=*/true, true)[0];
      slope.pow(2).mean().backward();
    };
  };
  const Problem task = decoder_problem();
  const auto expected = testing::train_passes(task, penalty(Where::kNowhere));
  for (const Where where : {Where::kAround, Where::kAll}) {
    testing::expect_passes_give(expected, task, penalty(where),
                                {.sharding = {.auto_wrap_policy = kBlocks}});
  }
}

}  // namespace
}  // namespace fullshard::recompute
