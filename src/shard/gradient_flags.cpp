#include "shard/gradient_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

namespace fullshard::shard {

bool UnitFlags::any() const { return std::find(flags.begin(), flags.end(), 1) != flags.end(); }

bool wants_gradients(const FlatUnit& unit) {
  return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                     [](const FoundParameter& found) { return found.tensor.requires_grad(); });
}

void join_flags(std::span<comm::Group* const> groups, const std::vector<FlatUnit>& units,
                std::vector<UnitFlags>& flags, std::int64_t round) {
  if (flags.empty()) return;
  GradientFlags joined;
  std::vector<std::string> names;
  for (const UnitFlags& unit : flags) {
    joined.insert(joined.end(), unit.flags.begin(), unit.flags.end());
    names.push_back(units[unit.unit].name);
  }
  const comm::OpTag tag{fmt::format("{}", fmt::join(names, ", ")), round};
  const comm::Buffer buffer{joined.data(), static_cast<std::int64_t>(joined.size()),
                            base::DType::kUInt8};
  for (comm::Group* group : groups) group->all_reduce(buffer, comm::ReduceOp::kMax, tag).wait();
  auto next = joined.begin();
  for (UnitFlags& unit : flags) {
    std::copy_n(next, unit.flags.size(), unit.flags.begin());
    next += static_cast<std::ptrdiff_t>(unit.flags.size());
  }
}

}  // namespace fullshard::shard
