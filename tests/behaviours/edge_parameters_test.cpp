#include <gtest/gtest.h>
#include <filesystem>

#include "support/networks.h"
#include "support/saved.h"
#include "support/temporary_folder.h"
#include "support/training.h"

// E: shared, scalar and uneven parameters.

namespace fullshard::shard {
namespace {

using testing::Problem;
using testing::TrainOptions;

TEST(Behaviours, E1_TiedWeightsStayOneParameter) {
  const Problem task = testing::gpt_problem(16, 8, 2, /*tied=*/true);
  const TrainOptions options{.steps = 3, .optimizer = testing::Optimizer::kAdam};
  const StateDict expected = testing::train_reference(task, options);
  const auto plain = task.build();
  std::int64_t elements = 0;
  for (const auto& parameter : testing::unique_parameters(*plain)) elements += parameter.numel();
  const auto batch = task.batch(0);
  plain->loss(batch.x, batch.y).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(testing::unique_parameters(*plain), 1e9);

  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    EXPECT_EQ(sharded.parameter_count(), elements);
    EXPECT_EQ(testing::unique_parameters(*model).size(), testing::unique_parameters(*plain).size());
    const auto rows = testing::rows_of_rank(batch, world.rank(), world.size());
    model->loss(rows.x, rows.y).backward();
    EXPECT_NEAR(sharded.grad_norm(), norm, 1e-12);

    testing::train_steps(*model, sharded, world, task, options);
    const StateDict state = sharded.full_state_dict();
    testing::expect_match(state, expected, 1e-10);
    EXPECT_TRUE(state.at("head.weight").is_same(state.at("table.weight")));
  });
}

struct Temperature : torch::nn::Module {
  explicit Temperature(double start) {
    value = register_parameter("value", at::scalar_tensor(start, at::kDouble));
  }
  at::Tensor value;
};

// Trainable scalars in the root and in a unit of its own.
struct Scalars : testing::Model {
  explicit Scalars(const std::shared_ptr<testing::Model>& inner) : body(inner) {
    bias = register_parameter("bias", at::scalar_tensor(0.3, at::kDouble));
    register_module("body", body);
    register_module("temperature", temperature);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    return body->loss(x / temperature->value, y) + (bias * temperature->value).pow(2);
  }
  std::shared_ptr<testing::Model> body;
  std::shared_ptr<Temperature> temperature = std::make_shared<Temperature>(1.7);
  at::Tensor bias;
};

Problem scalar_problem() {
  Problem task = testing::mlp_problem({4, 6, 3});
  task.build = [body = task.build] { return std::make_shared<Scalars>(body()); };
  return task;
}

TEST(Behaviours, E3_ScalarParameters) {
  const Problem task = scalar_problem();
  const TrainOptions options{.steps = 3, .max_norm = 0.3};
  const StateDict expected = testing::train_reference(task, options);
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("e3.pt");
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded =
        fully_shard(model, world.mesh(), {.auto_wrap_policy = wrap_modules<Temperature>()});
    testing::train_steps(*model, sharded, world, task, options);
    EXPECT_EQ(model->named_parameters()["temperature.value"].dim(), 0);
    testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    testing::save_whole(sharded, world.rank(), file);
  });
  const auto plain = testing::load_plain(task, file);
  comm::World alone = comm::single_rank();
  const auto sharded = fully_shard(plain, alone.mesh());
  EXPECT_EQ(sharded.full_state_dict().at("bias").dim(), 0);
  testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
}

struct Uneven : testing::Model {
  Uneven() {
    const auto make = [&](const char* name, at::IntArrayRef shape) {
      const auto count = c10::multiply_integers(shape);
      return register_parameter(name, at::linspace(-1, 1, count, at::kDouble).reshape(shape));
    };
    a = make("a", {3, 5});
    b = make("b", {1, 17});
    c = make("c", {2});
    d = make("d", {6, 4});
    e = make("e", {5});
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor h = torch::tanh(at::mm(x, a) + e);        // [rows, 5]
    const at::Tensor g = at::mm(h.narrow(1, 0, 1), b).sum(1);  // [rows]
    const at::Tensor k = at::mm(at::cat({h, x}, 1).narrow(1, 0, 6), d).sum(1);
    return (g * c[0] + k * c[1] - y.sum(1)).pow(2).mean();
  }
  at::Tensor a, b, c, d, e;
};

TEST(Behaviours, E4_FewerRowsThanRanksAndUnevenShapes) {
  Problem task = testing::mlp_problem({3, 3});
  task.build = [] { return std::make_shared<Uneven>(); };
  const TrainOptions first{.steps = 3, .optimizer = testing::Optimizer::kAdam, .max_norm = 1};
  const StateDict expected = testing::train_reference(task, first);
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("e4.pt");
  comm::run_as_threads(4, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    EXPECT_EQ(sharded.parameter_count(), 15 + 17 + 2 + 24 + 5);  // padding is not counted
    testing::train_steps(*model, sharded, world, task, first);
    testing::save_whole(sharded, world.rank(), file);
  });
  const StateDict saved = testing::parameters_of(*testing::load_plain(task, file));
  testing::expect_match(saved, expected, 1e-10);
  // Padding does not show in the file: it is as large as one of the plain model with a name as
  // long.
  const std::string of_plain = folder.path("p4.pt");
  torch::save(std::static_pointer_cast<torch::nn::Module>(task.build()), of_plain);
  EXPECT_EQ(std::filesystem::file_size(file), std::filesystem::file_size(of_plain));
  comm::run_as_threads(3, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    sharded.load_state_dict(saved);
    testing::expect_bitwise_equal(sharded.full_state_dict(), saved);
  });
}

}  // namespace
}  // namespace fullshard::shard
