#pragma once

#include <deque>
#include <string>
#include <vector>

#include "cli/parsing.h"
#include "fullshard/config/load.h"

namespace CLI {
class Option;
}

namespace fullshard::cli {

/// One CLI11 option for each row of the schema. Not movable: CLI11 keeps references to its members.
class FieldFlags {
 public:
  explicit FieldFlags(CLI::App& app);
  FieldFlags(const FieldFlags&) = delete;
  FieldFlags& operator=(const FieldFlags&) = delete;

  /// Those that were given. Throws base::Error(kUsage) for one that has another in place of its
  /// value.
  std::vector<config::Flag> given() const;

  /// Throws base::Error(kUsage) for a word that is rather a misspelt field than an option without a
  /// section.
  static void refuse_near_field(const std::string& word);

 private:
  std::deque<std::string> values_;  // a deque: CLI11 keeps references to what it fills
  std::vector<CLI::Option*> options_;
};

}  // namespace fullshard::cli
