#include "fullshard/shard/wrap_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fullshard/base/error.h"

namespace fullshard::shard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::nn::LayerNorm;
using torch::nn::Linear;

struct Net : torch::nn::Module {
  Net() {
    register_module("embed", Linear(4, 4));
    torch::nn::Sequential stack;
    for (int i = 0; i < 3; ++i) stack->push_back(Linear(4, 4));
    register_module("stack", stack);
    register_module("norm", LayerNorm(torch::nn::LayerNormOptions({4})));
  }
};

std::vector<std::string> names(const WrapPolicy& policy, const ModelNode& root) {
  std::vector<std::string> out;
  for (const UnitChoice& unit : policy(root)) {
    out.push_back(fmt::format("{}", fmt::join(unit, "+")));
  }
  return out;
}

std::vector<std::string> names(const WrapPolicy& policy,
                               const std::shared_ptr<torch::nn::Module>& module) {
  return names(policy, tree_of(module).root);
}

std::vector<std::string> names(const WrapPolicy& policy) {
  return names(policy, std::make_shared<Net>());
}

std::string refusal(const WrapPolicy& policy) {
  try {
    names(policy);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(WrapPolicy, ByClass) {
  EXPECT_THAT(names(wrap_modules<torch::nn::LayerNormImpl>()), ElementsAre("norm"));
  EXPECT_THAT(names(wrap_modules<torch::nn::LinearImpl>()),
              ElementsAre("embed", "stack.0", "stack.1", "stack.2"));
}

TEST(WrapPolicy, BySizeGroupsSmallChildrenIntoTheirParent) {
  // A Linear here has 20 elements, the stack 60.
  EXPECT_THAT(names(size_based(20)), ElementsAre("embed", "stack.0", "stack.1", "stack.2"));
  EXPECT_THAT(names(size_based(21)), ElementsAre("stack"));
  EXPECT_THAT(names(size_based(61)), IsEmpty());
}

TEST(WrapPolicy, ByNameAndByClassName) {
  EXPECT_THAT(names(wrap_named({"stack.?", "norm"})),
              ElementsAre("stack.0", "stack.1", "stack.2", "norm"));
  EXPECT_THAT(names(wrap_classes({"LayerNormImpl"})), ElementsAre("norm"));
  EXPECT_THAT(names(wrap_classes({"nn::LayerNormImpl", "LinearImpl"})),
              ElementsAre("embed", "stack.0", "stack.1", "stack.2", "norm"));
}

TEST(WrapPolicy, ANameThatMatchesNothingIsAnErrorThatNamesTheNearest) {
  EXPECT_THAT(
      refusal(wrap_named({"stack.*", "stakc.1"})),
      AllOf(HasSubstr("'stakc.1' in wrap_named matches no module"),
            HasSubstr("the nearest name is 'stack.1'"), HasSubstr("embed, stack, stack.0")));
  EXPECT_THAT(refusal(wrap_classes({"LinearImpl", "LayerNorm"})),
              AllOf(HasSubstr("no module of the model is of class 'LayerNorm' in wrap_classes"),
                    HasSubstr("torch::nn::LayerNormImpl")));
  EXPECT_THAT(refusal(wrap_classes({"NormImpl"})), HasSubstr("'NormImpl'"));
}

TEST(WrapPolicy, GroupsTakeTheirModulesOutOfOtherUnits) {
  EXPECT_THAT(names(with_groups(automatic(), {{"stack.2", "norm"}})),
              ElementsAre("stack.0", "stack.1", "stack.2+norm"));
}

TEST(WrapPolicy, RootOnlyPicksNothing) { EXPECT_THAT(names(root_only()), IsEmpty()); }

// Trees of modules whose parameters have shapes but no memory, for models of real sizes.
ModelNode leaf(std::string class_name, std::vector<std::vector<std::int64_t>> shapes) {
  ModelNode node{.class_name = std::move(class_name)};
  for (const auto& shape : shapes) {
    node.parameters.push_back({"", at::empty(shape, at::TensorOptions(at::kMeta))});
  }
  return node;
}

ModelNode linear(std::int64_t in, std::int64_t out) { return leaf("Linear", {{out, in}, {out}}); }
ModelNode norm(std::int64_t dim) { return leaf("Norm", {{dim}, {dim}}); }

ModelNode convolution(std::int64_t in, std::int64_t out, std::int64_t size = 3) {
  return leaf("Conv2d", {{out, in, size, size}});
}

void set_names(ModelNode& node, const std::string& name) {
  node.name = name;
  for (ModelNode& child : node.children) {
    set_names(child, name.empty() ? child.name : name + "." + child.name);
  }
}

ModelNode branch(std::string class_name, std::vector<std::pair<std::string, ModelNode>> children) {
  ModelNode node{.class_name = std::move(class_name)};
  for (auto& [name, child] : children) {
    child.name = name;
    node.children.push_back(std::move(child));
  }
  return node;
}

ModelNode list(std::vector<ModelNode> members) {
  ModelNode node{.class_name = "Sequential", .is_layer_list = true};
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i].name = std::to_string(i);
    node.children.push_back(std::move(members[i]));
  }
  return node;
}

std::vector<std::string> automatic_units(ModelNode root) {
  set_names(root, "");
  return names(automatic(), root);
}

ModelNode gpt_block(std::int64_t dim) {
  return branch("Block",
                {{"attention_norm", norm(dim)},
                 {"attention", branch("Attention", {{"qkv", linear(dim, 3 * dim)},
                                                    {"projection", linear(dim, dim)}})},
                 {"mlp_norm", norm(dim)},
                 {"mlp", list({linear(dim, 4 * dim), leaf("Gelu", {}), linear(4 * dim, dim)})}});
}

std::vector<ModelNode> gpt_blocks(std::size_t count, std::int64_t dim) {
  std::vector<ModelNode> blocks;
  for (std::size_t i = 0; i < count; ++i) blocks.push_back(gpt_block(dim));
  return blocks;
}

ModelNode gpt(std::int64_t vocab, std::int64_t dim, std::size_t layers) {
  return branch("Gpt", {{"tokens", leaf("Embedding", {{vocab, dim}})},
                        {"positions", leaf("Embedding", {{1024, dim}})},
                        {"blocks", list(gpt_blocks(layers, dim))},
                        {"norm", norm(dim)}});
}

std::vector<std::string> members(const std::string& of, int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back(fmt::format("{}.{}", of, i));
  return out;
}

TEST(Automatic, TakesTheMembersOfStacks) {
  EXPECT_THAT(names(automatic()), ElementsAre("stack.0", "stack.1", "stack.2"));
}

TEST(Automatic, BlocksOfAGptWhateverListsAreInsideAndTheTableWithTheRoot) {
  EXPECT_EQ(automatic_units(gpt(50304, 768, 12)), members("blocks", 12));
  EXPECT_EQ(automatic_units(gpt(64, 8, 2)), members("blocks", 2));
  EXPECT_EQ(automatic_units(gpt(50304, 4096, 32)), members("blocks", 32));
}

TEST(Automatic, ASecondLargeTableIsAUnit) {
  ModelNode untied = gpt(50304, 768, 12);
  untied.children.push_back(linear(768, 50304));
  untied.children.back().name = "head";
  std::vector<std::string> expected = members("blocks", 12);
  expected.emplace_back("norm+head");
  EXPECT_EQ(automatic_units(std::move(untied)), expected);
}

TEST(Automatic, ATiedHeadIsNoSecondTable) {
  ModelNode tied = gpt(50304, 768, 12);
  ModelNode head = tied.children.front();
  head.name = "head";
  tied.children.push_back(head);
  EXPECT_EQ(automatic_units(std::move(tied)), members("blocks", 12));
}

TEST(Automatic, NeighboursInADeepNarrowStackAreTogether) {
  // Blocks of 0.8M elements: a million is what a collective should move.
  const std::vector<std::string> units = automatic_units(gpt(256, 256, 48));
  ASSERT_EQ(units.size(), 24U);
  EXPECT_EQ(units.front(), "blocks.0+blocks.1");
  EXPECT_EQ(units.back(), "blocks.46+blocks.47");
  // An odd one at the end goes with those before it.
  EXPECT_EQ(automatic_units(gpt(256, 256, 49)).back(), "blocks.46+blocks.47+blocks.48");
}

TEST(Automatic, TowersInAListAreOpened) {
  ModelNode towers = list({gpt(1000, 256, 6), gpt(1000, 256, 6)});
  std::vector<std::string> expected = members("0.blocks", 6);
  for (const std::string& name : members("1.blocks", 6)) expected.push_back(name);
  EXPECT_EQ(automatic_units(std::move(towers)), expected);
}

TEST(Automatic, ABlockOfABillionIsDivided) {
  // 12 * 12288^2 elements are 1.8 billion.
  const std::vector<std::string> units = automatic_units(gpt(1000, 12288, 4));
  ASSERT_EQ(units.size(), 10U);
  EXPECT_EQ(units[0], "tokens");
  EXPECT_EQ(units[1], "positions");
  EXPECT_EQ(units[4], "blocks.1.attention_norm+blocks.1.attention+blocks.1.mlp_norm");
  EXPECT_EQ(units[5], "blocks.1.mlp");
}

TEST(Automatic, EncoderAndDecoderOfATransformer) {
  const auto model = std::make_shared<torch::nn::SequentialImpl>();
  model->push_back(torch::nn::Transformer(
      torch::nn::TransformerOptions(8, 2, 3, 2).dim_feedforward(16).dropout(0)));
  const std::vector<std::string> expected = {"0.encoder.layers.0", "0.encoder.layers.1",
                                             "0.encoder.layers.2", "0.decoder.layers.0",
                                             "0.decoder.layers.1"};
  EXPECT_EQ(names(automatic(), model), expected);
  EXPECT_EQ(names(transformer_blocks(), model), expected);
}

TEST(TransformerBlocks, AllOfAStackWhoseFirstMemberHasMore) {
  const auto stack = [] {
    ModelNode blocks = list(gpt_blocks(4, 16));
    blocks.children.front().children.push_back(leaf("Embedding", {{32, 8}}));
    blocks.children.front().children.back().name = "relative_positions";
    return branch("Stack", {{"block", std::move(blocks)}});
  };
  ModelNode model = branch(
      "T5",
      {{"shared", leaf("Embedding", {{100, 16}})}, {"encoder", stack()}, {"decoder", stack()}});
  set_names(model, "");
  std::vector<std::string> expected = members("encoder.block", 4);
  for (const std::string& name : members("decoder.block", 4)) expected.push_back(name);
  EXPECT_EQ(names(transformer_blocks(), model), expected);
  EXPECT_EQ(names(automatic(), model), expected);
}

TEST(TransformerBlocks, AModelWithoutAStackIsAnError) {
  const auto model = std::make_shared<torch::nn::SequentialImpl>(Linear(4, 8), Linear(8, 4));
  try {
    names(transformer_blocks(), model);
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("automatic()"));
  }
}

TEST(Automatic, NormalisationsGoWithTheirConvolutions) {
  const ModelNode model = list({convolution(3, 32), norm(32), leaf("Relu", {}), convolution(32, 64),
                                norm(64), leaf("Relu", {}), convolution(64, 128), norm(128),
                                leaf("Relu", {}), leaf("Flatten", {}), linear(2048, 100)});
  // The first convolution has 864 elements of 300,000 and cannot stand alone.
  EXPECT_THAT(automatic_units(model), ElementsAre("0+1+3+4", "6+7", "10"));
}

// The stages of ResNet-18: pairs of blocks that differ, but in the first stage.
ModelNode basic_block(std::int64_t in, std::int64_t out) {
  ModelNode block = branch("BasicBlock", {{"conv1", convolution(in, out)},
                                          {"bn1", norm(out)},
                                          {"conv2", convolution(out, out)},
                                          {"bn2", norm(out)}});
  if (in != out) {
    ModelNode shortcut = list({convolution(in, out, 1), norm(out)});
    shortcut.name = "downsample";
    block.children.push_back(shortcut);
  }
  return block;
}

TEST(Automatic, StagesOfAResidualNetwork) {
  const std::vector<std::string> units = automatic_units(
      branch("ResNet", {{"conv1", convolution(3, 64, 7)},
                        {"bn1", norm(64)},
                        {"layer1", list({basic_block(64, 64), basic_block(64, 64)})},
                        {"layer2", list({basic_block(64, 128), basic_block(128, 128)})},
                        {"layer3", list({basic_block(128, 256), basic_block(256, 256)})},
                        {"layer4", list({basic_block(256, 512), basic_block(512, 512)})},
                        {"fc", linear(512, 1000)}}));
  EXPECT_THAT(units,
              ElementsAre("conv1+bn1+layer1+layer2", "layer3", "layer4.0.conv1+layer4.0.bn1",
                          "layer4.0.conv2+layer4.0.bn2+layer4.0.downsample",
                          "layer4.1.conv1+layer4.1.bn1", "layer4.1.conv2+layer4.1.bn2", "fc"));
}

TEST(Automatic, LayersOfAnMlp) {
  const auto mlp = std::make_shared<torch::nn::SequentialImpl>(
      Linear(16, 24), torch::nn::Tanh(), Linear(24, 12), torch::nn::Tanh(), Linear(12, 5));
  EXPECT_THAT(names(automatic(), mlp), ElementsAre("0", "2", "4"));
}

TEST(Automatic, OneLayerIsTheRoot) {
  EXPECT_THAT(names(automatic(), std::make_shared<torch::nn::LinearImpl>(4, 4)), IsEmpty());
  EXPECT_THAT(names(automatic(), std::make_shared<torch::nn::SequentialImpl>()), IsEmpty());
}

}  // namespace
}  // namespace fullshard::shard
