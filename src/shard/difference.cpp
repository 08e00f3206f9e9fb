#include "shard/difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace fullshard::shard {
namespace {

constexpr std::size_t kShown = 32;

std::string names_of(const std::vector<int>& some, const std::vector<FlatUnit>& units) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(some.size(), kShown); ++i) {
    names.push_back(fmt::format("'{}'", units[static_cast<std::size_t>(some[i])].name));
  }
  if (some.size() > kShown) names.push_back(fmt::format("{} more", some.size() - kShown));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string account_of(const residency::UnitUses& uses, const std::vector<FlatUnit>& units,
                       int rank) {
  const std::vector<int>& now = uses.now();
  if (now.empty()) return "";
  std::vector<int> not_now;
  for (const int unit : uses.before()) {
    if (std::find(now.begin(), now.end(), unit) == now.end()) not_now.push_back(unit);
  }
  std::string text = fmt::format("; in this step rank {} has used {}", rank, names_of(now, units));
  if (!not_now.empty()) {
    text += fmt::format(", and not, so far, {} as in the step before", names_of(not_now, units));
  }
  return text;
}

}  // namespace fullshard::shard
