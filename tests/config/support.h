#pragma once

#include <string>

#include "fullshard/base/error.h"
#include "fullshard/config/load.h"
#include "fullshard/config/schema.h"

namespace fullshard::config {

/// Message of the kConfiguration error that `action` throws; empty when it throws none.
template <class Action>
std::string complaint(Action action) {
  try {
    action();
  } catch (const base::Error& error) {
    return error.code() == base::ErrorCode::kConfiguration ? error.what() : "another code";
  }
  return "";
}

/// A value that the field allows and that is not its default.
inline Value other_value(const Field& field) {
  const Value value = field.get(TrainConfig{});
  switch (field.type) {
    case ValueType::kBoolean: return !std::get<bool>(value);
    case ValueType::kInteger: return std::get<std::int64_t>(value) + 3;
    case ValueType::kNumber: return std::get<double>(value) * 0.7 + 0.1 / 3;
    case ValueType::kText: return std::string("say \"\\ü\t\x7f\" # [x]");
    case ValueType::kTextList: return std::vector<std::string>{"a,b", "", "\"c\""};
    case ValueType::kChoice: return field.choices.back();
  }
  return value;
}

/// A configuration in which nothing that can be otherwise is at its default.
inline TrainConfig other_config() {
  TrainConfig config;
  for (const Field& field : schema()) field.set(config, other_value(field));
  return config;
}

/// Field by field, exactly.
inline bool same(const TrainConfig& a, const TrainConfig& b) {
  for (const Field& field : schema()) {
    if (field.get(a) != field.get(b)) return false;
  }
  return true;
}

}  // namespace fullshard::config
