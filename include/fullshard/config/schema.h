#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fullshard/config/train_config.h"

// The one table behind the configuration file, the flags, help, the printed configuration and its
// JSON. A field exists for users exactly when it has a row here.

namespace fullshard::config {

/// What a file or a flag can hold. Choices travel as their names.
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

enum class ValueType { kBoolean, kInteger, kNumber, kText, kTextList, kChoice };

/// Allowed numbers: from `low` (itself excluded when `above_low`) to `high` (excluded when
/// `below_high`).
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;
  bool below_high = false;
};

struct Field {
  std::string section;
  std::string name;
  ValueType type;
  Range range;                       ///< of numbers and integers
  std::vector<std::string> choices;  ///< of a kChoice
  std::string unit;                  ///< empty when the value has none
  std::string help;
  std::function<Value(const TrainConfig&)> get;
  std::function<void(TrainConfig&, const Value&)> set;  ///< takes what assign() has checked

  std::string key() const { return section + "." + name; }
};

/// Every field, grouped by section in the order users should read them.
std::span<const Field> schema();

/// Names of the sections in the order of the schema.
std::vector<std::string> section_names();

/// The row of `section.name`, or nullptr.
const Field* find_field(std::string_view key);

/// Puts `value` into the configuration if the field's row allows it. Otherwise leaves the
/// configuration alone and returns what was found and what would be right; `subject` heads the
/// sentence: a flag, or file, line and key.
std::optional<std::string> assign(TrainConfig& config, const Field& field, const Value& value,
                                  std::string_view subject);

/// The value that a flag's text stands for; text that does not fit the field's type stays text, so
/// that assign() can say what was found. Lists are comma-separated.
Value parse_text(const Field& field, const std::string& text);

/// What the field takes, in words: "an integer, 1 or more".
std::string expected(const Field& field);

/// A sentence about a key that does not exist, with the nearest one that does. `prefix` ("--" for
/// flags) is put before keys.
std::string unknown_key(std::string_view key, std::string_view prefix = "");

}  // namespace fullshard::config
