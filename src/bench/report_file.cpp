#include "bench/report_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "fullshard/base/error.h"

namespace fullshard::bench {
namespace {

[[noreturn]] void fail(const std::string& path) {
  throw base::Error(base::ErrorCode::kFile, fmt::format("cannot write {}", path));
}

}  // namespace

ReportFile::ReportFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (std::filesystem::is_directory(path_)) fail(path_);
  partial_ = fmt::format("{}.{}.partial", path_, ::getpid());
  if (!std::ofstream(partial_)) fail(path_);
}

ReportFile::~ReportFile() {
  std::error_code ignored;
  if (!partial_.empty()) std::filesystem::remove(partial_, ignored);
}

void ReportFile::write(const std::string& contents) {
  if (partial_.empty()) return;
  std::ofstream file(partial_);
  file << contents;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(partial_, path_, error);
  if (!file || error) fail(path_);
  partial_.clear();
}

}  // namespace fullshard::bench
