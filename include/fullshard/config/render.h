#pragma once

#include <string>

#include "fullshard/config/schema.h"

namespace fullshard::config {

/// A value as TOML writes it; a float always shows that it is one.
std::string to_toml(const Value& value);

/// The whole configuration as a TOML file with the meaning of each field beside it; loading it
/// gives back exactly the same configuration.
std::string to_toml(const TrainConfig& config);

/// Help for every field as a flag: type, unit, range, default, meaning; grouped by section.
std::string flag_help();

/// The schema as Markdown tables, one a section, for documentation sites.
std::string markdown_tables();

}  // namespace fullshard::config
