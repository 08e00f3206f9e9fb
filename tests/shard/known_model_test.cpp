#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>
#include <vector>

#include "fullshard/models/bert.h"
#include "fullshard/models/resnet.h"
#include "fullshard/models/vit.h"
#include "fullshard/shard/sync_batch_norm.h"
#include "support/equality.h"
#include "support/passes_by_rank.h"

// Promise 1 for the models that granularities are compared on: cut at elements, rows, heads, and
// matrices by rows of the one and columns of the next, or whole layers owned by one rank each.

namespace fullshard::shard {
namespace {

using layout::Atom;
using testing::Batch;
using testing::Problem;

constexpr std::int64_t kRows = 12;  // divides by 1 to 4 ranks
constexpr std::int64_t kSide = 8;   // of images
constexpr std::int64_t kClasses = 5;
constexpr std::int64_t kVocabulary = 19;
constexpr std::int64_t kTokens = 6;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kWidth = 4;  // of a head

template <typename Net>
struct Known : testing::Model {
  explicit Known(Net made) : net(std::move(made)) {
    register_module("net", net);
    to(at::kDouble);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override { return net->loss(x, y); }
  Net net;
};

template <typename Net>
std::function<std::shared_ptr<testing::Model>()> seeded(std::function<Net()> make) {
  return [make] {
    return testing::build_seeded([&] { return std::make_shared<Known<Net>>(make()); });
  };
}

at::Generator generator(std::int64_t step) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(700 + step));
}

Batch image_batch(std::int64_t step) {
  const at::Generator random = generator(step);
  return {at::randn({kRows, 3, kSide, kSide}, random, at::kDouble),
          at::randint(kClasses, {kRows}, random, at::kLong)};
}

// Two tokens of each row are to be predicted, at places of its own: as many on every rank.
Batch masked_batch(std::int64_t step) {
  const at::Tensor tokens =
      at::randint(kVocabulary, {kRows, kTokens}, generator(step), at::TensorOptions(at::kLong));
  const at::Tensor targets = at::full_like(tokens, -100);
  const at::Tensor places = (at::arange(kRows).unsqueeze(1) + at::tensor({1, 4})) % kTokens;
  targets.scatter_(1, places, tokens.gather(1, places));
  return {tokens.scatter(1, places, 0), targets};
}

models::ResnetOptions resnet_options(bool bottleneck) {
  return {.blocks = {1, 2},
          .bottleneck = bottleneck,
          .width = 4,
          .n_classes = kClasses,
          .small_images = true};
}

Problem resnet(bool bottleneck) {
  return {.build = seeded<models::Resnet>(
              [bottleneck] { return models::Resnet(resnet_options(bottleneck)); }),
          .batch = image_batch};
}

Problem bert() {
  const models::BertOptions options{.vocab_size = kVocabulary,
                                    .seq_len = kTokens,
                                    .dim = kHeads * kWidth,
                                    .n_layers = 2,
                                    .n_heads = kHeads,
                                    .mlp_dim = 64};
  return {.build = seeded<models::Bert>([options] { return models::Bert(options); }),
          .batch = masked_batch};
}

// With a head that is not zero, so that the first step trains all of it.
Problem vit() {
  const models::VitOptions options{.image_size = kSide,
                                   .patch_size = 4,
                                   .dim = kHeads * kWidth,
                                   .n_layers = 2,
                                   .n_heads = kHeads,
                                   .mlp_dim = 96,
                                   .n_classes = kClasses};
  return {.build = seeded<models::Vit>([options] {
            models::Vit model(options);
            torch::nn::init::normal_(model->head->weight, 0.0, 0.3);
            return model;
          }),
          .batch = image_batch};
}

using Rules = std::vector<ParameterRule>;

Rules vit_rules(std::int64_t heads_together) {
  const std::int64_t group = heads_together * kWidth;
  return {{.pattern = "*in_proj_*", .atom = Atom::kRow, .group = group},
          {.pattern = "*out_proj.weight", .atom = Atom::kColumn, .group = group},
          {.pattern = "*mlp.0.*", .atom = Atom::kRow},
          {.pattern = "*mlp.3.weight", .atom = Atom::kColumn}};
}

Rules bert_rules(std::int64_t heads_together) {
  const std::int64_t group = heads_together * kWidth;
  return {{.pattern = "*attention.self.*", .atom = Atom::kRow, .group = group},
          {.pattern = "*attention.output.dense.weight", .atom = Atom::kColumn, .group = group},
          {.pattern = "*intermediate.dense.*", .atom = Atom::kRow},
          {.pattern = "*output.dense.weight", .atom = Atom::kColumn}};
}

struct Subject {
  std::string name;
  Problem problem;
  bool by_rank = false;  ///< statistics of each rank's own rows
  Rules (*heads)(std::int64_t heads_together) = nullptr;
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {{"Resnet", resnet(false), true},
                                           {"ResnetBottleneck", resnet(true), true},
                                           {"Bert", bert(), false, bert_rules},
                                           {"Vit", vit(), false, vit_rules}};
  return all;
}

using Point = std::tuple<std::size_t, int>;

class KnownModel : public ::testing::TestWithParam<Point> {
 protected:
  const Subject& subject() const { return subjects()[std::get<0>(GetParam())]; }

  void expect_equal(FullyShardOptions sharding) {
    const int ranks = std::get<1>(GetParam());
    const testing::Passes passes = testing::passes_by_rank(subject().by_rank, ranks);
    // A key's bias has no gradient but rounding, of which AdamW would make steps of full size.
    const testing::TrainOptions training{.steps = 3, .optimizer = testing::Optimizer::kSgd};
    if (expected_.empty()) expected_ = testing::train_passes(subject().problem, passes, training);
    for (const auto strategy : {ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP}) {
      sharding.sharding_strategy = strategy;
      testing::expect_passes_give(expected_, subject().problem, passes,
                                  {.ranks = ranks, .training = training, .sharding = sharding});
    }
  }

 private:
  StateDict expected_;
};

TEST_P(KnownModel, CutAtElementsOrRows) {
  expect_equal({});
  expect_equal({.rules = {{.pattern = "*", .atom = Atom::kRow}}});
  expect_equal({.rules = {{.pattern = "*", .atom = Atom::kRow, .group = 3}}});
}

TEST_P(KnownModel, CutBetweenHeadsAndAlongTheMlp) {
  if (subject().heads == nullptr) {
    // Between output channels of the one convolution and input channels of the next.
    expect_equal({.rules = {{.pattern = "*conv1.weight", .atom = Atom::kRow},
                            {.pattern = "*conv2.weight", .atom = Atom::kColumn}}});
    return;
  }
  for (const std::int64_t together : {1, 4, 6, 8}) {
    SCOPED_TRACE(together);
    expect_equal({.rules = subject().heads(together)});
  }
}

TEST_P(KnownModel, WholeLayersOwnedByOneRankEach) {
  const ParameterRule whole{.pattern = "*", .atom = Atom::kUnit};
  expect_equal({.rules = {whole}});
  expect_equal({.auto_wrap_policy = size_based(100), .rules = {whole}});
  expect_equal({.rules = {{.pattern = "*layer*", .atom = Atom::kUnit},
                          {.pattern = "*", .atom = Atom::kRow}}});
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  const auto [index, ranks] = info.param;
  return subjects()[index].name + "_R" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(Models, KnownModel,
                         ::testing::Combine(::testing::Range(std::size_t{0}, subjects().size()),
                                            ::testing::Values(1, 2, 3, 4)),
                         name_of);

// With SyncBatchNorm in BatchNorm's place, the ranks train as one process on the whole batch.
class SynchronisedResnet : public ::testing::TestWithParam<int> {};

TEST_P(SynchronisedResnet, EqualsOneProcessOnTheWholeBatch) {
  const Problem problem = resnet(/*bottleneck=*/true);
  const testing::TrainOptions training{.steps = 3, .optimizer = testing::Optimizer::kSgd};
  const StateDict expected = testing::train_reference(problem, training);
  for (const Atom atom : {Atom::kElement, Atom::kRow, Atom::kUnit}) {
    comm::run_as_threads(GetParam(), [&](comm::World& world) {
      const comm::Mesh mesh = world.mesh();
      const auto model = seeded<models::Resnet>([&] {
        return models::Resnet(resnet_options(/*bottleneck=*/true), [&](std::int64_t channels) {
          return torch::nn::AnyModule(
              SyncBatchNorm(torch::nn::BatchNormOptions(channels), mesh.all));
        });
      })();
      const auto sharded = fully_shard(model, mesh, {.rules = {{.pattern = "*", .atom = atom}}});
      testing::train_steps(*model, sharded, world, problem, training);
      testing::expect_match(sharded.full_state_dict(), expected, 1e-10);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SynchronisedResnet, ::testing::Values(1, 2, 3, 4));

// What of a parameter one rank owns, in elements of its storage order.
struct Owned {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t dimension;
};

// By rank, of the parameter whose name ends so, in the first block. Every matrix is a unit, so that
// each is cut.
std::vector<Owned> owners_of(const std::string& suffix, int ranks, const Rules& rules) {
  std::vector<Owned> owners(static_cast<std::size_t>(ranks));
  const Problem problem = vit();
  comm::run_as_threads(ranks, [&](comm::World& world) {
    const auto sharded = fully_shard(
        problem.build(), world.mesh(),
        {.auto_wrap_policy = wrap_named({"*self_attention", "*out_proj", "*mlp.0", "*mlp.3"}),
         .rules = rules});
    for (const state::ShardedTensor& shard : sharded.named_parameters()) {
      if (!shard.name.ends_with("encoder_layer_0." + suffix)) continue;
      owners.at(static_cast<std::size_t>(world.rank())) = {shard.begin, shard.end, shard.dimension};
    }
  });
  return owners;
}

// The whole has owners, one behind another, each of pieces of `unit` elements (the last may be
// smaller), and is cut at all.
void expect_whole(const std::string& suffix, int ranks, const Rules& rules, std::int64_t unit,
                  std::int64_t dimension) {
  SCOPED_TRACE(suffix + " on " + std::to_string(ranks));
  std::int64_t owned = 0;
  int owners = 0;
  for (const Owned& part : owners_of(suffix, ranks, rules)) {
    EXPECT_EQ(part.dimension, dimension);
    if (part.begin == part.end) continue;
    EXPECT_EQ(part.begin, owned);
    EXPECT_EQ(part.begin % unit, 0);
    owned = part.end;
    ++owners;
  }
  EXPECT_EQ(owned, owners_of(suffix, 1, rules).front().end);
  EXPECT_GT(owners, 1);
}

// Queries, keys and values of 12 heads are 144 rows; the next matrix takes 48 columns.
TEST(VitHeads, AreNeverCut) {
  constexpr std::int64_t kDim = kHeads * kWidth;
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t together : {4, 6, 8}) {
      const Rules rules = vit_rules(together);
      const std::int64_t group = together * kWidth * kDim;
      expect_whole("self_attention.in_proj_weight", ranks, rules, group, 0);
      expect_whole("self_attention.out_proj.weight", ranks, rules, group, 1);
    }
  }
}

TEST(VitMlp, IsCutBetweenRowsOfTheFirstMatrixAndColumnsOfTheSecond) {
  constexpr std::int64_t kDim = kHeads * kWidth;
  for (const int ranks : {2, 3, 4}) {
    expect_whole("mlp.0.weight", ranks, vit_rules(4), kDim, 0);
    expect_whole("mlp.3.weight", ranks, vit_rules(4), kDim, 1);
  }
}

}  // namespace
}  // namespace fullshard::shard
