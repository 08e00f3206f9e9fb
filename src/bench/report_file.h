#pragma once

#include <string>

namespace fullshard::bench {

/// A file that gets its name only once its contents are complete. Made before a long measurement,
/// so that a place where nothing can be written is found at once.
class ReportFile {
 public:
  /// Throws base::Error(kFile). An empty path means no file.
  explicit ReportFile(std::string path);
  ~ReportFile();
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  /// Throws base::Error(kFile).
  void write(const std::string& contents);

 private:
  std::string path_;
  std::string partial_;  ///< empty once it is complete
};

}  // namespace fullshard::bench
