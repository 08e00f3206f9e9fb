#include "fullshard/layout/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "fullshard/base/error.h"
#include "layout/arbitrary.h"

namespace fullshard::layout {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Layouts = std::vector<UnitLayout>;
using Slice = std::vector<std::int64_t>;
using Slices = std::vector<std::vector<Slice>>;  // [unit][rank]

constexpr std::int64_t kUntouched = -1;

// Where the element that comes `element`th in storage order comes in row-major order.
std::int64_t row_major(const PlacedParameter& p, std::int64_t element) {
  if (p.spec.atom != Atom::kColumn || p.spec.shape.size() < 2) return element;
  const std::int64_t rows = p.spec.shape[0];
  const std::int64_t columns = p.spec.shape[1];
  const std::int64_t inner = p.numel / (rows * columns);
  const std::int64_t column = element / (rows * inner);
  const std::int64_t row = element / inner % rows;
  return (row * columns + column) * inner + element % inner;
}

// A different value for every element of every parameter, whatever order it is stored in.
std::int64_t value_of(const PlacedParameter& p, std::int64_t element) {
  return std::stoll(p.spec.name.substr(1)) * 1'000'000 + row_major(p, element);
}

Slices empty_slices(const Layouts& layouts) {
  Slices slices;
  for (const UnitLayout& layout : layouts) {
    std::vector<Slice>& ranks = slices.emplace_back();
    for (int rank = 0; rank < layout.world(); ++rank) {
      ranks.emplace_back(layout.slice(rank).size(), kUntouched);
    }
  }
  return slices;
}

Slices filled_slices(const Layouts& layouts) {
  Slices slices = empty_slices(layouts);
  for (std::size_t unit = 0; unit < layouts.size(); ++unit) {
    for (int rank = 0; rank < layouts[unit].world(); ++rank) {
      const std::int64_t start = layouts[unit].slice(rank).begin;
      for (std::size_t i = 0; i < layouts[unit].parameters().size(); ++i) {
        const PlacedParameter& p = layouts[unit].parameters()[i];
        const Range shard = layouts[unit].shard(i, rank);
        for (std::int64_t e = shard.begin; e < shard.end; ++e) {
          slices[unit][static_cast<std::size_t>(rank)]
                [static_cast<std::size_t>(p.offset + e - start)] = value_of(p, e);
        }
      }
    }
  }
  return slices;
}

Slices moved(const Slices& source, const Layouts& from, const Layouts& to) {
  Slices target = empty_slices(to);
  for (const Copy& copy : reshard_map(from, to)) {
    const Slice& in = source.at(copy.from_unit).at(static_cast<std::size_t>(copy.from_rank));
    Slice& out = target.at(copy.to_unit).at(static_cast<std::size_t>(copy.to_rank));
    for (std::int64_t k = 0; k < copy.count; ++k) {
      std::int64_t& place = out.at(static_cast<std::size_t>(copy.to_offset + k));
      RC_ASSERT(place == kUntouched);  // copies are disjoint
      place = in.at(static_cast<std::size_t>(copy.from_offset + k * copy.from_stride));
    }
  }
  return target;
}

// The same parameters in a random order, grouped into units at random, cut and aligned at random.
Layouts any_grouping(std::vector<ParameterSpec> specs) {
  const auto units = *arbitrary::between<std::size_t>(1, 4);
  std::vector<std::vector<ParameterSpec>> groups(units);
  for (ParameterSpec& spec : specs) {
    spec.atom = *rc::gen::element(Atom::kElement, Atom::kRow, Atom::kColumn, Atom::kParameter);
    auto& group = groups[*arbitrary::between<std::size_t>(0, units)];
    const auto at = *arbitrary::between<std::size_t>(0, group.size() + 1);
    group.insert(group.begin() + static_cast<std::ptrdiff_t>(at), spec);
  }
  Layouts layouts;
  for (std::size_t i = 0; i < units; ++i) {
    layouts.push_back(UnitLayout::make(fmt::format("u{}", i), groups[i], arbitrary::options()));
  }
  return layouts;
}

RC_GTEST_PROP(ReshardProperty, EveryElementArrivesWhereTheTargetExpectsIt, ()) {
  const auto specs = arbitrary::parameters(arbitrary::dtype());
  const Layouts from = any_grouping(specs);
  const Layouts to = any_grouping(specs);
  RC_ASSERT(moved(filled_slices(from), from, to) == filled_slices(to));
}

RC_GTEST_PROP(ReshardProperty, ThereAndBackIsTheIdentity, ()) {
  const auto specs = arbitrary::parameters(arbitrary::dtype());
  const Layouts from = any_grouping(specs);
  const Layouts to = any_grouping(specs);
  const Slices start = filled_slices(from);
  RC_ASSERT(moved(moved(start, from, to), to, from) == start);
}

RC_GTEST_PROP(ReshardProperty, CopiesAreOneForEachPairOfOverlappingShards, ()) {
  const auto specs = arbitrary::parameters(arbitrary::dtype());  // columns on both sides or none
  const UnitLayout from = UnitLayout::make("u", specs, arbitrary::options());
  const UnitLayout to = UnitLayout::make("u", specs, arbitrary::options());
  std::size_t overlaps = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (int a = 0; a < from.world(); ++a) {
      for (int b = 0; b < to.world(); ++b) {
        overlaps += intersect(from.shard(i, a), to.shard(i, b)).empty() ? 0 : 1;
      }
    }
  }
  RC_ASSERT(reshard_map(from, to).size() == overlaps);
}

ParameterSpec floats(std::string name, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape)};
}

TEST(Reshard, FourRanksToThree) {
  const auto from = UnitLayout::make("u", {floats("w", {96})}, {.world = 4});
  const auto to = UnitLayout::make("u", {floats("w", {96})}, {.world = 3});
  // Four slices end at 32, 48, 80, 96 (cuts at 24 and 72 round up to 16s); three at 32, 64, 96.
  const std::vector<Copy> expected = {{"w", 0, 0, 0, 0, 0, 0, 32},
                                      {"w", 0, 1, 0, 0, 1, 0, 16},
                                      {"w", 0, 2, 0, 0, 1, 16, 16},
                                      {"w", 0, 2, 16, 0, 2, 0, 16},
                                      {"w", 0, 3, 0, 0, 2, 16, 16}};
  EXPECT_EQ(reshard_map(from, to), expected);
}

TEST(Reshard, RowsToColumnsIsOneCopyAColumnAndSource) {
  ParameterSpec by_columns = floats("w", {32, 2});
  by_columns.atom = Atom::kColumn;
  ParameterSpec by_rows = floats("w", {32, 2});
  by_rows.atom = Atom::kRow;
  const auto from = UnitLayout::make("u", {by_rows}, {.world = 2});
  const auto to = UnitLayout::make("u", {by_columns}, {.world = 2});
  // Rows of two floats: a rank's 16 rows give 16 elements of each column, one every two.
  const std::vector<Copy> expected = {{"w", 0, 0, 0, 0, 0, 0, 16, 2},
                                      {"w", 0, 1, 0, 0, 0, 16, 16, 2},
                                      {"w", 0, 0, 1, 0, 1, 0, 16, 2},
                                      {"w", 0, 1, 1, 0, 1, 16, 16, 2}};
  EXPECT_EQ(reshard_map(from, to), expected);
}

std::string refusal(const Layouts& from, const Layouts& to) {
  try {
    reshard_map(from, to);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

UnitLayout unit(std::string name, std::vector<ParameterSpec> specs) {
  return UnitLayout::make(std::move(name), std::move(specs), {.world = 2});
}

TEST(Reshard, RefusesParametersOnOneSideOnly) {
  const auto both = unit("u", {floats("a", {4}), floats("b", {4})});
  const auto one = unit("u", {floats("a", {4})});
  EXPECT_THAT(refusal({both}, {one}), AllOf(HasSubstr("'b'"), HasSubstr("not in the target")));
  EXPECT_THAT(refusal({one}, {both}), AllOf(HasSubstr("'b'"), HasSubstr("not in the source")));
}

TEST(Reshard, RefusesAnotherShape) {
  EXPECT_THAT(refusal({unit("u", {floats("a", {2, 3})})}, {unit("u", {floats("a", {3, 2})})}),
              AllOf(HasSubstr("'a'"), HasSubstr("(2, 3)"), HasSubstr("(3, 2)")));
}

TEST(Reshard, RefusesAParameterInTwoUnits) {
  const auto one = unit("first", {floats("a", {4})});
  const auto two = unit("second", {floats("a", {4})});
  EXPECT_THAT(refusal({one, two}, {one}),
              AllOf(HasSubstr("'a'"), HasSubstr("'first'"), HasSubstr("'second'")));
}

TEST(Reshard, DtypeMayChange) {
  ParameterSpec wide = floats("a", {40});
  ParameterSpec narrow = wide;
  narrow.dtype = base::DType::kBFloat16;
  std::int64_t copied = 0;
  for (const Copy& copy : reshard_map(unit("u", {wide}), unit("u", {narrow}))) copied += copy.count;
  EXPECT_EQ(copied, 40);
}

}  // namespace
}  // namespace fullshard::layout
