#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/config/schema.h"

// Makers of schema rows: one template turns a member of TrainConfig into a Field, so that type,
// default and limits come from the member itself.

namespace fullshard::config {

/// Names of an enumeration's values as users write them; specialised beside the table.
template <class T>
struct Names;

inline Range any() { return {}; }
inline Range at_least(double low) { return {.low = low}; }
inline Range above(double low) { return {.low = low, .above_low = true}; }
inline Range between(double low, double high) { return {.low = low, .high = high}; }
/// Zero or more, but less than one.
inline Range fraction() { return {.low = 0, .high = 1, .below_high = true}; }

template <class T>
Value to_value(const T& member) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [value, name] : Names<T>::kTable) {
      if (value == member) return std::string(name);
    }
    base::fail_check(__FILE__, __LINE__, "an enumeration value without a name");
  } else if constexpr (std::is_same_v<T, int>) {
    return std::int64_t{member};
  } else {
    return member;
  }
}

template <class T>
void from_value(T& member, const Value& value) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [candidate, name] : Names<T>::kTable) {
      if (name == std::get<std::string>(value)) member = candidate;
    }
  } else if constexpr (std::is_same_v<T, int>) {
    member = static_cast<int>(std::get<std::int64_t>(value));
  } else {
    member = std::get<T>(value);
  }
}

template <class T>
constexpr ValueType value_type() {
  if constexpr (std::is_enum_v<T>) return ValueType::kChoice;
  if constexpr (std::is_same_v<T, bool>) return ValueType::kBoolean;
  if constexpr (std::is_integral_v<T>) return ValueType::kInteger;
  if constexpr (std::is_floating_point_v<T>) return ValueType::kNumber;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return ValueType::kTextList;
  return ValueType::kText;
}

/// The row of the member that `access` selects.
template <class Access>
Field row(std::string_view key, Access access, const std::string& unit, const std::string& help,
          Range range = any()) {
  using T = std::remove_cvref_t<decltype(access(std::declval<TrainConfig&>()))>;
  const std::size_t dot = key.find('.');
  Field field{.section = std::string(key.substr(0, dot)),
              .name = std::string(key.substr(dot + 1)),
              .type = value_type<T>(),
              .range = range,
              .choices = {},
              .unit = unit,
              .help = help,
              .get = [access](const TrainConfig& config) { return to_value<T>(access(config)); },
              .set = [access](TrainConfig& config,
                              const Value& value) { from_value<T>(access(config), value); }};
  if constexpr (std::is_enum_v<T>) {
    for (const auto& entry : Names<T>::kTable) field.choices.emplace_back(entry.second);
  }
  if constexpr (std::is_same_v<T, int>) {
    field.range.high = std::min<double>(field.range.high, std::numeric_limits<int>::max());
  }
  return field;
}

/// The row of a text member that takes only the given names.
template <class Access>
Field choice(std::string_view key, Access access, std::vector<std::string> names,
             const std::string& help) {
  Field field = row(key, access, "", help);
  field.type = ValueType::kChoice;
  field.choices = std::move(names);
  return field;
}

}  // namespace fullshard::config
