#include "fullshard/config/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fullshard/base/error.h"
#include "fullshard/config/schema.h"

namespace fullshard::config {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& message) {
  throw base::Error(base::ErrorCode::kConfiguration, message);
}

/// The value of a JSON leaf; text for whatever no field can hold, so that assign() refuses it.
Value to_value(const json& node) {
  if (node.is_boolean()) return node.get<bool>();
  if (node.is_number_integer()) return node.get<std::int64_t>();
  if (node.is_number_float()) return node.get<double>();
  if (node.is_string()) return node.get<std::string>();
  const auto is_text = [](const json& item) { return item.is_string(); };
  if (node.is_array() && std::ranges::all_of(node, is_text)) {
    return node.get<std::vector<std::string>>();
  }
  return node.dump();
}

void apply_section(TrainConfig& config, const std::string& section, const json& fields,
                   std::string_view origin) {
  if (!fields.is_object()) fail(fmt::format("{}: '{}' must be an object", origin, section));
  for (const auto& [name, node] : fields.items()) {
    const std::string key = section + "." + name;
    const Field* field = find_field(key);
    if (field == nullptr) fail(fmt::format("{}: {}", origin, unknown_key(key)));
    const auto problem = assign(config, *field, to_value(node), fmt::format("{}: {}", origin, key));
    if (problem) fail(*problem);
  }
}

}  // namespace

std::string to_json(const TrainConfig& config) {
  nlohmann::ordered_json document;
  for (const Field& field : schema()) {
    std::visit([&](const auto& value) { document[field.section][field.name] = value; },
               field.get(config));
  }
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

TrainConfig parse_json(std::string_view text, std::string_view origin) {
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object()) fail(fmt::format("{}: not a JSON object", origin));
  TrainConfig config;
  for (const auto& [section, fields] : document.items()) {
    apply_section(config, section, fields, origin);
  }
  return config;
}

}  // namespace fullshard::config
