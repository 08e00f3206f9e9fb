#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/parsing.h"

namespace fullshard::cli {

/// `fullshard doctor ...`: adds its commands to `parent`, and says what was meant once that has
/// parsed. Not movable: CLI11 keeps references to its members.
class DoctorParser {
 public:
  explicit DoctorParser(CLI::App& parent);
  DoctorParser(const DoctorParser&) = delete;
  DoctorParser& operator=(const DoctorParser&) = delete;

  bool chosen() const;

  /// Throws base::Error(kUsage).
  Command result() const;

 private:
  Command trace_result() const;

  CLI::App* doctor_;
  CLI::App* trace_;
  bool help_ = false;
  bool trace_help_ = false;
  bool json_ = false;
  std::vector<std::string> files_;
};

}  // namespace fullshard::cli
