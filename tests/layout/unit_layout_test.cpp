#include "fullshard/layout/unit_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fullshard/base/error.h"

namespace fullshard::layout {
namespace {

using base::DType;
using testing::AllOf;
using testing::HasSubstr;

ParameterSpec floats(std::string name, std::vector<std::int64_t> shape,
                     Atom atom = Atom::kElement) {
  return {.name = std::move(name), .shape = std::move(shape), .atom = atom};
}

std::vector<std::int64_t> slice_sizes(const UnitLayout& layout) {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < layout.world(); ++rank) sizes.push_back(layout.slice(rank).size());
  return sizes;
}

// The message of the error that making this layout throws; empty when it throws none.
std::string refusal(std::vector<ParameterSpec> specs, const LayoutOptions& options = {}) {
  try {
    UnitLayout::make("block", std::move(specs), options);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(UnitLayout, OneRankOwnsEverything) {
  const auto layout = UnitLayout::make("u", {floats("w", {3, 5}), floats("b", {5})}, {});
  EXPECT_EQ(layout.slice(0), (Range{0, layout.flat_size()}));
  EXPECT_EQ(layout.shard(0, 0), (Range{0, 15}));
  EXPECT_EQ(layout.shard(1, 0), (Range{0, 5}));
}

TEST(UnitLayout, ParametersStartAtSixtyFourBytes) {
  const auto layout = UnitLayout::make("u", {floats("w", {3, 5}), floats("b", {17})}, {});
  EXPECT_EQ(layout.parameters()[1].offset, 16);
  EXPECT_EQ(layout.flat_size(), 48);
  EXPECT_EQ(layout.flat_bytes(), 192);
  EXPECT_EQ(layout.payload_size(), 32);
}

TEST(UnitLayout, ScalarHasOneElement) {
  const auto layout = UnitLayout::make("u", {floats("scale", {})}, {.world = 2});
  EXPECT_EQ(layout.parameters()[0].numel, 1);
  EXPECT_EQ(layout.payload_size(), 1);
  EXPECT_EQ(layout.shard(0, 0).size() + layout.shard(0, 1).size(), 1);
}

TEST(UnitLayout, EmptyUnitAndEmptyParameters) {
  const auto nothing = UnitLayout::make("u", {}, {.world = 3});
  EXPECT_EQ(nothing.flat_size(), 0);
  EXPECT_THAT(slice_sizes(nothing), testing::ElementsAre(0, 0, 0));

  const auto hollow =
      UnitLayout::make("u", {floats("a", {0, 4}), floats("b", {4, 0})}, {.world = 3});
  EXPECT_EQ(hollow.flat_size(), 0);
  EXPECT_TRUE(hollow.shard(1, 2).empty());
}

TEST(UnitLayout, FewerAtomsThanRanksLeavesSomeRanksWithoutAny) {
  const auto layout = UnitLayout::make("u", {floats("b", {2})}, {.world = 4});
  std::int64_t owners = 0;
  for (int rank = 0; rank < 4; ++rank) owners += layout.shard(0, rank).empty() ? 0 : 1;
  EXPECT_EQ(owners, 1);
  EXPECT_EQ(layout.max_slice_size(), 16);
}

TEST(UnitLayout, RaggedSlicesWhenSizesDoNotDivide) {
  const auto layout = UnitLayout::make("u", {floats("w", {80})}, {.world = 3});
  EXPECT_THAT(slice_sizes(layout), testing::ElementsAre(32, 16, 32));
}

TEST(UnitLayout, RowsAreCutWhereARowStartsAligned) {
  // Rows of 5 floats reach a multiple of 16 floats at every 16th row.
  const auto layout = UnitLayout::make("u", {floats("w", {40, 5}, Atom::kRow)}, {.world = 2});
  EXPECT_EQ(layout.slice(0).end, 80);
  EXPECT_EQ(layout.shard(0, 1), (Range{80, 200}));
}

TEST(UnitLayout, RowGroupsStayTogether) {
  ParameterSpec heads = floats("heads", {12, 16}, Atom::kRow);
  heads.group = 4;
  const auto layout = UnitLayout::make("u", {heads}, {.world = 2});
  EXPECT_EQ(layout.slice(0).end % (4 * 16), 0);
  EXPECT_THAT(slice_sizes(layout), testing::ElementsAre(128, 64));
}

TEST(UnitLayout, ColumnsLieOneAfterTheOther) {
  const auto layout = UnitLayout::make("u", {floats("w", {16, 6}, Atom::kColumn)}, {.world = 3});
  EXPECT_THAT(layout.parameters()[0].strides(), testing::ElementsAre(1, 16));
  EXPECT_EQ(layout.shard(0, 1), (Range{2 * 16, 4 * 16}));  // columns 2 and 3
  const auto images = UnitLayout::make("u", {floats("w", {4, 3, 5, 2}, Atom::kColumn)}, {});
  EXPECT_THAT(images.parameters()[0].strides(), testing::ElementsAre(10, 40, 2, 1));
}

TEST(UnitLayout, ColumnGroupsStayTogether) {
  ParameterSpec heads = floats("projection", {16, 12}, Atom::kColumn);
  heads.group = 4;
  const auto layout = UnitLayout::make("u", {heads}, {.world = 2});
  EXPECT_THAT(slice_sizes(layout), testing::ElementsAre(128, 64));
}

TEST(UnitLayout, AVectorsColumnsAreItsElements) {
  ParameterSpec bias = floats("bias", {64}, Atom::kColumn);
  bias.group = 32;
  const auto layout =
      UnitLayout::make("u", {bias, floats("scale", {}, Atom::kColumn)}, {.world = 4});
  EXPECT_THAT(layout.parameters()[0].strides(), testing::ElementsAre(1));
  EXPECT_THAT(slice_sizes(layout), testing::ElementsAre(32, 0, 32, 16));
}

TEST(UnitLayout, WholeParametersStayOnOneRank) {
  const auto layout = UnitLayout::make(
      "u", {floats("a", {1000}, Atom::kParameter), floats("b", {1000}, Atom::kParameter)},
      {.world = 2});
  EXPECT_EQ(layout.shard(0, 0).size(), 1000);
  EXPECT_EQ(layout.shard(1, 1).size(), 1000);
}

TEST(UnitLayout, AWholeUnitStaysOnTheRankThatHasAllTheWeight) {
  const std::vector<ParameterSpec> unit = {floats("a", {1000}, Atom::kUnit),
                                           floats("b", {30, 10}, Atom::kUnit)};
  for (int owner = 0; owner < 3; ++owner) {
    std::vector<double> weights(3, 0.0);
    weights[static_cast<std::size_t>(owner)] = 1;
    const auto layout = UnitLayout::make("u", unit, {.world = 3, .weights = weights});
    EXPECT_TRUE(layout.is_whole());
    EXPECT_EQ(layout.slice(owner), (Range{0, layout.flat_size()}));
    EXPECT_EQ(layout.shard(1, owner), (Range{0, 300}));
  }
  // Without a rank that has all of it, the one whose fair share lies in the middle.
  EXPECT_THAT(slice_sizes(UnitLayout::make("u", unit, {.world = 3})),
              testing::ElementsAre(0, 1312, 0));
}

TEST(UnitLayout, WeightsShareInProportion) {
  const auto layout =
      UnitLayout::make("u", {floats("w", {1600})}, {.world = 3, .weights = {1, 0, 3}});
  EXPECT_THAT(slice_sizes(layout), testing::ElementsAre(400, 0, 1200));
}

TEST(UnitLayout, AlignmentCountsBytesOfTheDtype) {
  ParameterSpec half{.name = "w", .shape = {100}, .dtype = DType::kBFloat16};
  EXPECT_EQ(UnitLayout::make("u", {half}, {}).quantum(), 32);
  EXPECT_EQ(UnitLayout::make("u", {half}, {.alignment_bytes = 128}).quantum(), 64);
}

TEST(UnitLayout, OwnerSkipsRanksThatOwnNothing) {
  const auto layout =
      UnitLayout::make("u", {floats("w", {32})}, {.world = 4, .weights = {0, 1, 0, 1}});
  EXPECT_EQ(layout.owner(0, 0), 1);
  EXPECT_EQ(layout.owner(0, 15), 1);
  EXPECT_EQ(layout.owner(0, 16), 3);
}

TEST(UnitLayout, FindsParametersByName) {
  const auto layout = UnitLayout::make("u", {floats("weight", {2}), floats("bias", {2})}, {});
  EXPECT_EQ(layout.index_of("bias"), 1U);
  try {
    layout.index_of("wieght");
    FAIL() << "an unknown name was found";
  } catch (const base::Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("wieght"), HasSubstr("did you mean 'weight'")));
  }
}

TEST(UnitLayout, HugeUnitsDoNotOverflow) {
  const std::int64_t large = std::int64_t{1} << 40;
  const auto layout = UnitLayout::make(
      "u", {floats("a", {large}, Atom::kParameter), floats("b", {large + 1, 3}, Atom::kRow)},
      {.world = 17});
  EXPECT_EQ(layout.payload_size(), large + (large + 1) * 3);
  EXPECT_EQ(layout.owner(1, (large + 1) * 3 - 1), 16);
}

TEST(UnitLayoutRefuses, TwoDtypesNamingBothParameters) {
  ParameterSpec norm{.name = "norm.weight", .shape = {4}, .dtype = DType::kFloat32};
  ParameterSpec linear{.name = "linear.weight", .shape = {4, 4}, .dtype = DType::kBFloat16};
  EXPECT_THAT(refusal({linear, norm}),
              AllOf(HasSubstr("'block'"), HasSubstr("'linear.weight' is bfloat16"),
                    HasSubstr("'norm.weight' is float32"), HasSubstr("layout of its own")));
}

TEST(UnitLayoutRefuses, AUnitThatIsCutInPart) {
  EXPECT_THAT(refusal({floats("a", {4}, Atom::kUnit), floats("b", {4}, Atom::kRow)}),
              AllOf(HasSubstr("'a'"), HasSubstr("'b'"), HasSubstr("layout of its own")));
}

TEST(UnitLayoutRefuses, ANameUsedTwice) {
  EXPECT_THAT(refusal({floats("w", {1}), floats("w", {2})}), HasSubstr("'w' is listed twice"));
}

TEST(UnitLayoutRefuses, BadShapes) {
  EXPECT_THAT(refusal({floats("w", {2, -1})}), AllOf(HasSubstr("'w'"), HasSubstr("(2, -1)")));
  const std::int64_t half = std::int64_t{1} << 32;
  EXPECT_THAT(refusal({floats("w", {half, half})}), HasSubstr("63 bits"));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal({floats("a", {most})}), HasSubstr("split the unit"));
  const std::int64_t fits_once = most / 4 - 100;
  EXPECT_EQ(refusal({floats("a", {fits_once})}), "");
  EXPECT_THAT(refusal({floats("a", {fits_once}), floats("b", {fits_once})}),
              HasSubstr("split the unit"));
}

TEST(UnitLayoutRefuses, AHugeShapeOnlyWhenItHasElements) {
  const std::int64_t half = std::int64_t{1} << 32;
  EXPECT_EQ(refusal({floats("w", {half, half, 0})}), "");
}

TEST(UnitLayoutRefuses, BadOptions) {
  const std::vector<ParameterSpec> one = {floats("w", {4})};
  EXPECT_THAT(refusal(one, {.world = 0}), HasSubstr("at least 1"));
  EXPECT_THAT(refusal(one, {.alignment_bytes = 0}), HasSubstr("positive multiple"));
  EXPECT_THAT(refusal(one, {.alignment_bytes = 6}), HasSubstr("4 bytes of float32"));
  EXPECT_THAT(refusal(one, {.world = 2, .weights = {1}}), HasSubstr("1 weights for 2 ranks"));
  EXPECT_THAT(refusal(one, {.world = 2, .weights = {0, 0}}), HasSubstr("add up to 0"));
  EXPECT_THAT(refusal(one, {.world = 2, .weights = {1, -1}}), HasSubstr("rank 1 is -1"));
  EXPECT_THAT(refusal(one, {.world = 2, .weights = {1, std::nan("")}}), HasSubstr("rank 1"));
}

TEST(UnitLayoutRefuses, RowsPerAtomBelowOne) {
  ParameterSpec spec = floats("w", {4, 4}, Atom::kRow);
  spec.group = 0;
  EXPECT_THAT(refusal({spec}), AllOf(HasSubstr("'w'"), HasSubstr("group of 0 rows")));
}

TEST(UnitLayoutRefuses, RanksAndElementsOutOfRange) {
  const auto layout = UnitLayout::make("u", {floats("w", {4})}, {.world = 2});
  EXPECT_THROW(layout.slice(2), base::Error);
  EXPECT_THROW(layout.slice(-1), base::Error);
  EXPECT_THROW(layout.owner(0, 4), base::Error);
}

}  // namespace
}  // namespace fullshard::layout
