#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "support/equality.h"

// B13, K: what happens between training steps, and to buffers.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;

struct Normed : testing::Model {
  Normed() : first(4, 4), norm(4), last(4, 4) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return (last(norm(first(x))) - y).pow(2).mean();
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};

StateDict buffers_of(const torch::nn::Module& model) {
  StateDict out;
  for (const auto& item : model.named_buffers()) out[item.key()] = item.value().clone();
  return out;
}

// Ranks have batches of 3 and 5 rows and keep the statistics of their own.
TEST(Behaviours, B13_BuffersAreLocalAndSavedFromRank0) {
  const Problem task = testing::problem_of<Normed>(4, 4);
  const Batch rows = task.batch(0);
  const auto rows_of = [&](int rank) {
    return rank == 0 ? rows.x.narrow(0, 0, 3) : rows.x.narrow(0, 3, 5);
  };
  std::vector<StateDict> expected;
  for (const int rank : {0, 1}) {
    const auto plain = task.build();
    plain->loss(rows_of(rank), rows_of(rank));
    expected.push_back(buffers_of(*plain));
  }
  StateDict saved[2];
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    if (world.rank() == 1) model->named_buffers()["norm.running_mean"].fill_(5);
    const auto sharded = fully_shard(model, world.mesh());
    EXPECT_EQ(model->named_buffers()["norm.running_mean"].abs().sum().item<double>(), 0);

    const at::Tensor x = rows_of(world.rank());
    model->loss(x, x).backward();
    const auto mine = static_cast<std::size_t>(world.rank());
    testing::expect_match(buffers_of(*model), expected[mine], 1e-12);
    saved[mine] = sharded.full_state_dict();
    testing::expect_match(buffers_of(*model), expected[mine], 1e-12);  // saving changes nothing
    EXPECT_EQ(sharded.full_state_dict(/*rank0_only=*/true).empty(), world.rank() != 0);
  });
  testing::expect_bitwise_equal(saved[1], saved[0]);
  testing::expect_match(saved[0], expected[0], 1e-12);
}

// A language model with a method that no framework knows of.
struct Speaker : testing::Model {
  Speaker() : table(11, 6) {
    register_module("table", table);
    for (int i = 0; i < 2; ++i) layers->push_back(torch::nn::Linear(6, 6));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(6, 11));
  }
  at::Tensor logits(const at::Tensor& tokens) {
    at::Tensor h = table(tokens).cumsum(1);
    for (const auto& layer : *layers) {
      h = h + torch::tanh(layer->as<torch::nn::Linear>()->forward(h));
    }
    return head(h);
  }
  at::Tensor greedy(const at::Tensor& prompt, int count) {
    const at::NoGradGuard no_grad;
    at::Tensor tokens = prompt;
    for (int i = 0; i < count; ++i) {
      const at::Tensor next = logits(tokens).select(1, -1).argmax(-1, /*keepdim=*/true);
      tokens = at::cat({tokens, next}, 1);
    }
    return tokens;
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return at::cross_entropy_loss(logits(x).flatten(0, 1), y.flatten());
  }
  torch::nn::Embedding table;
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
};

Problem speaker_problem() {
  Problem task = testing::problem_of<Speaker>(4, 4);
  task.batch = testing::gpt_problem(11, 6, 1).batch;
  return task;
}

const at::Tensor kPrompt = at::arange(6, at::kLong).reshape({2, 3});

TEST(Behaviours, K1_MethodsOtherThanForwardWork) {
  const Problem task = speaker_problem();
  const auto plain = std::static_pointer_cast<Speaker>(task.build());
  const at::Tensor expected = plain->greedy(kPrompt, 5);
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY}) {
    comm::run_as_threads(2, [&](comm::World& world) {
      const auto model = std::static_pointer_cast<Speaker>(task.build());
      const auto sharded = fully_shard(model, world.mesh(), {.sharding_strategy = strategy});
      EXPECT_TRUE(at::equal(model->greedy(kPrompt, 5), expected));
      const at::Tensor row = model->table->weight[3] + model->head->bias.sum();
      EXPECT_TRUE(at::equal(row, plain->table->weight[3] + plain->head->bias.sum()));
    });
  }
}

using Interlude = std::function<void(Speaker&, const ShardedModule&, std::int64_t step)>;

// Runs `interlude` before every backward's optimizer step and after it.
StateDict train_with(comm::World& world, ShardingStrategy strategy, const Interlude& interlude) {
  const Problem task = speaker_problem();
  const auto model = std::static_pointer_cast<Speaker>(task.build());
  for (at::Tensor& parameter : model->layers[0]->parameters()) parameter.set_requires_grad(false);
  const auto sharded = fully_shard(model, world.mesh(), {.sharding_strategy = strategy});
  const auto optimizer = testing::stock_optimizer(testing::Optimizer::kAdam, sharded.parameters());
  for (std::int64_t step = 0; step < 6; ++step) {
    const Batch batch = testing::rows_of_rank(task.batch(step), world.rank(), world.size());
    optimizer->zero_grad();
    model->loss(batch.x, batch.y).backward();
    interlude(*model, sharded, step);
    optimizer->step();
    interlude(*model, sharded, step);
  }
  return sharded.full_state_dict();
}

void expect_undisturbed(const Interlude& interlude) {
  for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
                              ShardingStrategy::SHARD_OPTIMIZER_ONLY, ShardingStrategy::NO_SHARD}) {
    comm::run_as_threads(2, [&](comm::World& world) {
      const StateDict expected =
          train_with(world, strategy, [](Speaker&, const ShardedModule&, std::int64_t) {});
      testing::expect_bitwise_equal(train_with(world, strategy, interlude), expected);
    });
  }
}

TEST(Behaviours, K3_EvaluationBetweenStepsChangesNothing) {
  const Batch held_out = speaker_problem().batch(77);
  expect_undisturbed([&](Speaker& model, const ShardedModule& sharded, std::int64_t step) {
    switch (step % 3) {
      case 0: model.greedy(kPrompt, 2); return;
      case 1: sharded.full_state_dict(); return;
      default: {
        const c10::InferenceMode inference;
        model.loss(held_out.x, held_out.y);
      }
    }
  });
}

// Without a NoGradGuard the pass is recorded as the beginning of a step that never comes.
TEST(Behaviours, K3_EvaluationThatRecordsGradientsChangesNothing) {
  const Batch held_out = speaker_problem().batch(77);
  expect_undisturbed([&](Speaker& model, const ShardedModule&, std::int64_t) {
    model.loss(held_out.x, held_out.y);
  });
}

// Each evaluation sees the parameters as the last step left them, on all ranks.
TEST(Behaviours, K3_EvaluationSeesTheLatestParameters) {
  const Problem task = speaker_problem();
  const Batch held_out = task.batch(77);
  for (const bool with_gradients : {false, true}) {
    const auto evaluate = [&](testing::Model& model) {
      const at::AutoGradMode mode(with_gradients);
      return model.loss(held_out.x, held_out.y).item<double>();
    };
    const auto plain = task.build();
    const auto optimizer = testing::stock_optimizer(testing::Optimizer::kSgd, plain->parameters());
    const Batch whole = task.batch(0);
    plain->loss(whole.x, whole.y).backward();
    std::vector<double> expected;
    for (int step = 0; step < 5; ++step) {
      expected.push_back(evaluate(*plain));
      optimizer->step();
    }
    comm::run_as_threads(3, [&](comm::World& world) {
      const auto model = task.build();
      const auto sharded = fully_shard(model, world.mesh());
      const auto mine = testing::stock_optimizer(testing::Optimizer::kSgd, sharded.parameters());
      const Batch rows = testing::rows_of_rank(whole, world.rank(), world.size());
      model->loss(rows.x, rows.y).backward();
      for (const double loss : expected) {
        EXPECT_NEAR(evaluate(*model), loss, 1e-12);
        mine->step();
      }
    });
  }
}

}  // namespace
}  // namespace fullshard::shard
