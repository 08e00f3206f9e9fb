#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fullshard/config/train_config.h"

namespace fullshard::config {

/// Lays a TOML file over `config`. Throws base::Error(kConfiguration) that lists every fault in the
/// file, each with file, line, key, what was found, and what would be right; `config` is then
/// unchanged.
void apply_toml_file(TrainConfig& config, const std::string& path);

/// The same for TOML text; `name` stands for the file in messages.
void apply_toml(TrainConfig& config, const std::string& text, const std::string& name);

/// Key ("section.field") and text of one command-line flag.
using Flag = std::pair<std::string, std::string>;

/// Lays flags over `config`. Throws base::Error(kConfiguration) that lists every faulty flag;
/// `config` is then unchanged.
void apply_flags(TrainConfig& config, const std::vector<Flag>& flags);

}  // namespace fullshard::config
