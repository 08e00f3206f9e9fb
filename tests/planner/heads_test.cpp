#include "fullshard/planner/heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/units.h"

namespace fullshard::planner {
namespace {

using layout::PlacedParameter;
using layout::UnitLayout;

ModelShape vit(std::int64_t heads) {
  ModelShape shape = named_model("vit-b16");
  shape.layers = 2;
  shape.heads = heads;
  shape.dim = 64 * heads;
  return shape;
}

// Every inner end of a shard of the parameter, in elements, divides by `atom`.
void expect_whole(const UnitLayout& layout, std::size_t parameter, std::int64_t atom) {
  const PlacedParameter& placed = layout.parameters()[parameter];
  for (int rank = 0; rank < layout.world(); ++rank) {
    const layout::Range shard = layout.shard(parameter, rank);
    if (shard.empty()) continue;
    EXPECT_EQ(shard.begin % atom, 0) << placed.spec.name << ", rank " << rank;
    EXPECT_TRUE(shard.end % atom == 0 || shard.end == placed.numel) << placed.spec.name;
  }
}

void expect_heads_whole(const ModelShape& shape, const std::vector<UnitLayout>& layouts,
                        std::int64_t heads_per_group) {
  const std::int64_t group = heads_per_group * (shape.dim / shape.heads);
  const std::int64_t hidden = shape.mlp_ratio * shape.dim;
  int found = 0;
  for (const UnitLayout& layout : layouts) {
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      const std::string& name = layout.parameters()[i].spec.name;
      if (name.ends_with("in_proj_weight")) expect_whole(layout, i, group * shape.dim), ++found;
      if (name.ends_with("in_proj_bias")) expect_whole(layout, i, group), ++found;
      if (name.ends_with("out_proj.weight")) expect_whole(layout, i, group * shape.dim), ++found;
      if (name.ends_with("mlp.0.weight")) expect_whole(layout, i, shape.dim), ++found;
      if (name.ends_with("mlp.3.weight")) expect_whole(layout, i, shape.dim), ++found;
    }
  }
  EXPECT_EQ(found, 5 * shape.layers);
  EXPECT_EQ(hidden % shape.dim, 0);
}

TEST(Heads, AreNeverCutWhateverTheRanksAndUnits) {
  for (const std::int64_t heads : {1, 3, 12, 13, 16}) {
    const ModelShape shape = vit(heads);
    for (int ranks = 1; ranks <= 16; ++ranks) {
      for (const UnitCut& cut :
           {UnitCut{}, UnitCut{UnitCut::Kind::kHalves, 0}, UnitCut{UnitCut::Kind::kWhole, 0}}) {
        SCOPED_TRACE(::testing::Message() << heads << " heads, " << ranks << " ranks");
        const HeadProposal proposal =
            propose_heads(shape, ranks, cut.kind == UnitCut::Kind::kHalves);
        const UnitSet set = cut_into_units(stages_of(shape), cut, proposal.rules, false);
        expect_heads_whole(shape, lay_out(set, ranks), proposal.heads_per_group);
      }
    }
  }
}

TEST(Heads, AreFourToEightInAGroupWhereRanksAllowIt) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const HeadProposal proposal = propose_heads(vit(12), ranks);
    SCOPED_TRACE(::testing::Message() << ranks << " ranks, share " << proposal.largest_share);
    EXPECT_EQ(12 % proposal.heads_per_group, 0);
    EXPECT_LE(proposal.heads_per_group, 8);
    if (proposal.heads_per_group >= 4) continue;
    for (const std::int64_t more : {4, 6}) {  // none of these would have been even enough
      std::vector<layout::ParameterSpec> block;
      for (const Stage& stage : stages_of(vit(12))) {
        if (stage.block == 0) {
          block.insert(block.end(), stage.parameters.begin(), stage.parameters.end());
        }
      }
      apply_rules(head_rules(vit(12), more), block);
      const auto layout = UnitLayout::make("block", block, {.world = ranks});
      EXPECT_GT(static_cast<double>(layout.max_slice_size() * ranks),
                1.25 * static_cast<double>(layout.flat_size()));
    }
  }
}

TEST(Heads, OfFewRanksAreThoseThatTheUsersAsk) {
  EXPECT_EQ(propose_heads(vit(12), 2).heads_per_group, 6);
  EXPECT_EQ(propose_heads(vit(16), 2).heads_per_group, 8);
  EXPECT_EQ(propose_heads(vit(3), 2).heads_per_group, 3);
  EXPECT_EQ(propose_heads(vit(13), 2).heads_per_group, 4);  // no divisor, and still none is cut
  EXPECT_EQ(propose_heads(named_model("gpt2-xl"), 2).heads_per_group, 5);
}

TEST(Heads, ManyRanksGetFewerHeadsEach) {
  const ModelShape shape = vit(12);
  const auto alone = [&](int ranks) { return propose_heads(shape, ranks, true); };
  EXPECT_EQ(alone(2).heads_per_group, 6);
  EXPECT_LT(alone(16).heads_per_group, 4);
}

TEST(Heads, RulesNameTheParametersOfEachKind) {
  const auto first = [](const ModelShape& shape) { return head_rules(shape, 4).front().pattern; };
  EXPECT_EQ(first(vit(12)), "*.in_proj_*");
  EXPECT_EQ(first(named_model("bench-a")), "*.attention.qkv.*");
  EXPECT_EQ(head_rules(vit(12), 4).front().group, 256);
}

}  // namespace
}  // namespace fullshard::planner
