#include "shard/patterns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"

namespace fullshard::shard {
namespace {

constexpr std::size_t kNamesShown = 8;

std::vector<std::string> distinct(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
    if (out.size() > kNamesShown) break;
  }
  return out;
}

}  // namespace

std::string suggestion(const std::string& name, const std::vector<std::string>& names) {
  const std::string nearest = base::nearest_name(name, names);
  std::vector<std::string> shown = distinct(names);
  if (shown.empty()) return "; there is none";
  if (shown.size() > kNamesShown) shown.back() = "...";
  return fmt::format("{} (there are: {})",
                     nearest.empty() ? "" : fmt::format("; the nearest name is '{}'", nearest),
                     fmt::join(shown, ", "));
}

void require_matches(std::string_view option, const std::vector<std::string>& patterns,
                     std::string_view kind, const std::vector<std::string>& names) {
  for (const std::string& pattern : patterns) {
    const bool matches = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return base::matches_glob(pattern, name);
    });
    if (matches) continue;
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("'{}' in {} matches no {}{}", pattern, option, kind,
                                  suggestion(pattern, names)));
  }
}

void require_units(std::string_view option, const std::vector<std::string>& patterns,
                   const std::vector<FlatUnit>& units) {
  std::vector<std::string> names;
  for (const FlatUnit& unit : units) names.push_back(unit.picked);
  require_matches(option, patterns, "unit", names);
}

}  // namespace fullshard::shard
