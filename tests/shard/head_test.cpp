#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/equality.h"

// Attention cut between heads or groups of heads, and a tensor of experts between experts: who owns
// what, and that training does not change.

namespace fullshard::shard {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kWidth = 4;  // of a head
constexpr std::int64_t kDim = kHeads * kWidth;

// Self-attention over 5 patches, as in a vision transformer.
struct PatchAttention : testing::Model {
  PatchAttention() : qkv(kDim, 3 * kDim), projection(kDim, kDim) {
    register_module("qkv", qkv);
    register_module("projection", projection);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor patches = x.view({-1, 5, kDim});
    const at::Tensor heads = qkv(patches).view({-1, 5, 3, kHeads, kWidth}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
    const at::Tensor out = projection(mixed.transpose(1, 2).flatten(2));
    return (out.flatten(1) - y).pow(2).mean();
  }
  torch::nn::Linear qkv, projection;
};

// Rows of a head in the one, columns of the same head in the other.
FullyShardOptions between_heads(std::int64_t heads_together) {
  const std::int64_t group = heads_together * kWidth;
  return {
      .auto_wrap_policy = wrap_named({"qkv", "projection"}),
      .rules = {{.pattern = "qkv.*", .atom = layout::Atom::kRow, .group = group},
                {.pattern = "projection.weight", .atom = layout::Atom::kColumn, .group = group}}};
}

std::string table_of(const testing::Problem& task, int ranks, const FullyShardOptions& sharding) {
  std::string table;
  comm::run_as_threads(ranks, [&](comm::World& world) {
    const std::string mine = fully_shard(task.build(), world.mesh(), sharding).describe();
    if (world.rank() == 0) table = mine;
  });
  return table;
}

struct Owners {
  int ranks;
  std::string first;   // of the matrix that is cut into rows: elements
  std::string second;  // of the one that is cut into columns: columns
};

void expect_owners(std::int64_t heads_together, const std::vector<Owners>& expected) {
  const auto task = testing::problem_of<PatchAttention>(5 * kDim, 5 * kDim);
  for (const Owners& owners : expected) {
    const std::string table = table_of(task, owners.ranks, between_heads(heads_together));
    const std::string atom = "  atom " + std::to_string(heads_together * kWidth);
    EXPECT_THAT(table, HasSubstr("  qkv.weight  [96, 32]  " + owners.first + atom + " rows\n"));
    EXPECT_THAT(table,
                HasSubstr("  projection.weight  [32, 32]  " + owners.second + atom + " columns\n"));
  }
}

// A head is 4 rows of 32 elements in the one, 4 columns in the other.
TEST(Heads, AreOwnedWhole) {
  expect_owners(1, {{2, "0:[0,1536) 1:[1536,3072)", "0:columns[0,16) 1:columns[16,32)"},
                    {3, "0:[0,1024) 1:[1024,2176) 2:[2176,3072)",
                     "0:columns[0,12) 1:columns[12,24) 2:columns[24,32)"},
                    {4, "0:[0,768) 1:[768,1536) 2:[1536,2432) 3:[2432,3072)",
                     "0:columns[0,8) 1:columns[8,16) 2:columns[16,24) 3:columns[24,32)"}});
}

TEST(Heads, InGroupsOfFourAreOwnedWhole) {
  expect_owners(4,
                {{2, "0:[0,1536) 1:[1536,3072)", "0:columns[0,16) 1:columns[16,32)"},
                 {3, "0:[0,1024) 1:[1024,2048) 2:[2048,3072)", "0:columns[0,16) 2:columns[16,32)"},
                 {4, "0:[0,1024) 1:[1024,1536) 2:[1536,2560) 3:[2560,3072)",
                  "0:columns[0,16) 2:columns[16,32)"}});
}

TEST(Heads, InGroupsOfEightAreTheThreeMatrices) {
  expect_owners(8, {{3, "0:[0,1024) 1:[1024,2048) 2:[2048,3072)", "1:columns[0,32)"}});
}

// Every token is a mix of experts, whose matrices lie in one tensor [experts, out, in].
struct Experts : torch::nn::Module {
  Experts() {
    weight = register_parameter("weight", at::randn({6, 8, 8}) / 3);
    bias = register_parameter("bias", at::randn({6, 8}));
  }
  at::Tensor weight, bias;
};

struct Mixture : testing::Model {
  Mixture() : gate(8, 6), experts(std::make_shared<Experts>()) {
    register_module("gate", gate);
    register_module("experts", experts);
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override {
    const at::Tensor outputs =
        at::tanh(at::einsum("eoi,bi->beo", {experts->weight, x}) + experts->bias);
    const at::Tensor mixed = (gate(x).softmax(-1).unsqueeze(-1) * outputs).sum(1);
    return (mixed - y).pow(2).mean();
  }
  torch::nn::Linear gate;
  std::shared_ptr<Experts> experts;
};

FullyShardOptions between_experts(std::int64_t together) {
  return {.auto_wrap_policy = wrap_named({"experts"}),
          .rules = {{.pattern = "experts.*", .atom = layout::Atom::kRow, .group = together}}};
}

const testing::Problem kMixture = testing::problem_of<Mixture>(8, 8);

TEST(Experts, AreOwnedWhole) {
  for (const auto& [ranks, owners] : std::vector<std::pair<int, std::string>>{
           {2, "0:[0,192) 1:[192,384)"},
           {3, "0:[0,128) 1:[128,320) 2:[320,384)"},
           {4, "0:[0,128) 1:[128,192) 2:[192,320) 3:[320,384)"}}) {
    EXPECT_THAT(table_of(kMixture, ranks, between_experts(1)),
                HasSubstr("  experts.weight  [6, 8, 8]  " + owners + "  atom 1 row\n"));
  }
  EXPECT_THAT(
      table_of(kMixture, 3, between_experts(2)),
      HasSubstr("  experts.weight  [6, 8, 8]  0:[0,128) 1:[128,256) 2:[256,384)  atom 2 rows\n"));
}

class HeadsAndExperts : public ::testing::TestWithParam<int> {};

TEST_P(HeadsAndExperts, TrainEqualToUnsharded) {
  const auto attention = testing::problem_of<PatchAttention>(5 * kDim, 5 * kDim);
  const auto passes = [](testing::Model& model, const testing::Batch& batch, const testing::Turn&) {
    model.loss(batch.x, batch.y).backward();
  };
  for (const std::int64_t together : {1, 4, 8}) {
    SCOPED_TRACE(together);
    testing::expect_equal_passes_for_strategies(
        attention, passes, {.ranks = GetParam(), .sharding = between_heads(together)});
  }
  for (const std::int64_t together : {1, 2}) {
    SCOPED_TRACE(together);
    testing::expect_equal_passes_for_strategies(
        kMixture, passes, {.ranks = GetParam(), .sharding = between_experts(together)});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HeadsAndExperts, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace fullshard::shard
