#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shard/flat_unit.h"

namespace fullshard::shard {

/// "; the nearest name is 'x'" where one is near, and " (there are: a, b, c, ...)" with the first
/// of `names`: for errors about a name that is none of them.
std::string suggestion(const std::string& name, const std::vector<std::string>& names);

/// Throws base::Error(kInvalidArgument) for the first of `patterns` that matches none of `names`.
/// The error says that it was given to `option` and that no `kind` has such a name.
void require_matches(std::string_view option, const std::vector<std::string>& patterns,
                     std::string_view kind, const std::vector<std::string>& names);

/// The same for patterns of units.
void require_units(std::string_view option, const std::vector<std::string>& patterns,
                   const std::vector<FlatUnit>& units);

}  // namespace fullshard::shard
