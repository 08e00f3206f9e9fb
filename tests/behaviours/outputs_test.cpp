#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <any>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/equality.h"
#include "support/networks.h"

// B11, O1: what the forward of a unit returns is the user's affair.

namespace fullshard::shard {
namespace {

using testing::Batch;
using testing::Problem;

struct Layer : torch::nn::Module {
  Layer() { register_module("linear", linear); }
  at::Tensor run(const at::Tensor& x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear{4, 4};
};

struct ReturnsTuple : Layer {
  std::tuple<at::Tensor, int, at::Tensor> forward(const at::Tensor& x) {
    return {run(x), 3, run(x * 2)};
  }
};

struct ReturnsVector : Layer {
  std::vector<at::Tensor> forward(const at::Tensor& x) { return {run(x), x, run(-x)}; }
};

struct ReturnsMap : Layer {
  std::map<std::string, at::Tensor> forward(const at::Tensor& x) {
    return {{"out", run(x)}, {"of square", run(x * x)}};
  }
};

struct ReturnsOptional : Layer {
  std::optional<at::Tensor> forward(const at::Tensor& x) { return run(x); }
};

struct Heads {
  at::Tensor first;
  std::vector<std::pair<std::string, at::Tensor>> more;
};

struct ReturnsStruct : Layer {
  struct Outputs {
    Heads heads;
    std::map<int, std::optional<Heads>> by_number;
  };
  Outputs forward(const at::Tensor& x) {
    return {{run(x), {{"shifted", run(x + 1)}}}, {{7, Heads{run(x * x), {}}}, {8, std::nullopt}}};
  }
};

// Reads the unit's parameters when it is asked, long after its forward.
class Lazy {
 public:
  explicit Lazy(std::function<at::Tensor()> compute) : compute_(std::move(compute)) {}
  at::Tensor value() const { return compute_(); }

 private:
  std::function<at::Tensor()> compute_;
};

struct ReturnsLazy : Layer {
  std::unique_ptr<const Lazy> forward(const at::Tensor& x) {
    return std::make_unique<const Lazy>([this, x] { return run(x); });
  }
};

// Each unit reads an output of the one before; the loss uses others of them from step to step.
struct Containers : testing::Model {
  Containers() {
    register_module("tuple", tuple);
    register_module("vector", vector);
    register_module("map", map);
    register_module("optional", optional);
    register_module("structure", structure);
    register_module("lazy", lazy);
  }

  std::vector<at::Tensor> outputs(const at::Tensor& x) {
    const auto later = lazy->forward(x);
    const auto [first, number, second] = tuple->forward(x);
    const std::vector<at::Tensor> of_vector = vector->forward(second * number);
    const auto of_map = map->forward(of_vector[2]);
    const auto of_optional = optional->forward(of_map.at("of square"));
    const auto of_structure = structure->forward(of_optional.value());
    return {first,
            second,
            of_vector[0],
            of_vector[1],
            of_map.at("out"),
            *of_optional,
            of_structure.heads.first,
            of_structure.heads.more[0].second,
            of_structure.by_number.at(7)->first,
            later->value()};
  }

  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    std::mt19937 random(step++);
    std::vector<at::Tensor> all = outputs(x);
    std::shuffle(all.begin(), all.end(), random);
    at::Tensor sum = (all[0] - y).pow(2).mean();
    for (std::size_t i = 1; i < 4; ++i) sum = sum + all[i].pow(2).mean();
    return sum;
  }

  std::shared_ptr<ReturnsTuple> tuple = std::make_shared<ReturnsTuple>();
  std::shared_ptr<ReturnsVector> vector = std::make_shared<ReturnsVector>();
  std::shared_ptr<ReturnsMap> map = std::make_shared<ReturnsMap>();
  std::shared_ptr<ReturnsOptional> optional = std::make_shared<ReturnsOptional>();
  std::shared_ptr<ReturnsStruct> structure = std::make_shared<ReturnsStruct>();
  std::shared_ptr<ReturnsLazy> lazy = std::make_shared<ReturnsLazy>();
  unsigned step = 0;
};

TEST(Behaviours, B11_OutputsInContainers) {
  const Problem task = testing::problem_of<Containers>(4, 4);
  const testing::Passes passes = [](testing::Model& model, const Batch& batch,
                                    const testing::Turn&) {
    model.loss(batch.x, batch.y).backward();
  };
  for (const bool over_gloo : {false, true}) {
    testing::expect_equal_passes_for_strategies(
        task, passes,
        {.training = {.steps = 8},
         .sharding = {.auto_wrap_policy = wrap_modules<Layer>()},
         .over_gloo = over_gloo});
  }
}

TEST(Behaviours, B11_EachContainerIsOfAUnitOfItsOwn) {
  comm::World world = comm::single_rank();
  const auto sharded = fully_shard(testing::problem_of<Containers>(4, 4).build(), world.mesh(),
                                   {.auto_wrap_policy = wrap_modules<Layer>()});
  EXPECT_EQ(sharded.counters().units.size(), 6U);
}

// There is no unsupported output to report.
struct Opaque {
  std::any anything;
  const std::shared_ptr<at::Tensor> hidden;
};

struct ReturnsOpaque : Layer {
  Opaque forward(const Opaque& input) {
    return {std::string("whatever"), std::make_shared<at::Tensor>(run(*input.hidden))};
  }
};

struct OpaqueNet : testing::Model {
  OpaqueNet() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const Opaque out = second->forward(first->forward({1, std::make_shared<at::Tensor>(x)}));
    return (*out.hidden - y).pow(2).mean();
  }
  std::shared_ptr<ReturnsOpaque> first = std::make_shared<ReturnsOpaque>();
  std::shared_ptr<ReturnsOpaque> second = std::make_shared<ReturnsOpaque>();
};

TEST(Behaviours, O1_AnyOutputIsSupported) {
  const Problem task = testing::problem_of<OpaqueNet>(4, 4);
  const Batch batch = task.batch(0);
  const auto plain = task.build();
  plain->loss(batch.x, batch.y).backward();
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded =
        fully_shard(model, world.mesh(), {.auto_wrap_policy = wrap_modules<ReturnsOpaque>()});
    const Batch rows = testing::rows_of_rank(batch, world.rank(), world.size());
    model->loss(rows.x, rows.y).backward();
    testing::expect_gradients_of(sharded, *plain);
  });
}

}  // namespace
}  // namespace fullshard::shard
