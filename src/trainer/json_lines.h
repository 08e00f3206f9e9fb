#pragma once

#include <fstream>
#include <string>

#include "trainer/step_report.h"

namespace fullshard::trainer {

/// Writes one JSON object for every step, each on a line of its own that is there as soon as the
/// step has ended. A file of that name is replaced.
class JsonLines {
 public:
  /// Throws base::Error(kFile) when the file cannot be made. An empty path writes nothing.
  explicit JsonLines(const std::string& path);

  /// Throws base::Error(kFile) when the line cannot be written.
  void write(const StepReport& report);

 private:
  std::string path_;
  std::ofstream file_;
};

/// The object, with the members of StepReport under their names, and tokens_per_second;
/// validation_loss only in steps after which it was measured.
std::string to_json(const StepReport& report);

}  // namespace fullshard::trainer
