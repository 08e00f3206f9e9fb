#pragma once

#include <string>
#include <string_view>

#include "fullshard/config/train_config.h"

namespace fullshard::config {

/// The configuration as one JSON object of sections; numbers are written so that parse_json gives
/// back exactly the same configuration.
std::string to_json(const TrainConfig& config);

/// Reads what to_json wrote. Fields that are absent keep their defaults; anything else that is not
/// as the schema says is base::Error(kConfiguration), with `origin` at the head of its message.
TrainConfig parse_json(std::string_view text, std::string_view origin = "configuration");

}  // namespace fullshard::config
