#include "fullshard/data/corpus.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <system_error>

#include "fullshard/base/error.h"
#include "fullshard/data/utf8.h"

namespace fullshard::data {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& problem) {
  throw base::Error(base::ErrorCode::kFile,
                    fmt::format("text file \"{}\": {}", path.string(), problem));
}

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) fail(path, "it is a folder");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, std::generic_category().message(errno));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) fail(path, "reading failed");
  return text;
}

}  // namespace

Text load_text_file(const std::filesystem::path& path) {
  std::string text = read_file(path);
  if (text.empty()) fail(path, "it is empty");
  if (const auto offset = first_invalid_utf8(text)) {
    fail(path,
         fmt::format("byte {:#04x} at offset {} is not UTF-8; convert the file to UTF-8 first",
                     static_cast<unsigned char>(text[*offset]), *offset));
  }
  return std::make_shared<const std::string>(std::move(text));
}

Split split(std::string_view text, double validation_fraction) {
  if (!(validation_fraction >= 0 && validation_fraction < 1)) {
    throw base::Error(
        base::ErrorCode::kInvalidArgument,
        fmt::format("validation_fraction must be from 0 to below 1, not {}", validation_fraction));
  }
  const auto validation =
      static_cast<std::size_t>(std::floor(static_cast<double>(text.size()) * validation_fraction));
  const std::size_t cut = text.size() - validation;
  return {text.substr(0, cut), text.substr(cut)};
}

}  // namespace fullshard::data
