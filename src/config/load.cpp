#include "fullshard/config/load.h"

#include <fmt/format.h>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "fullshard/config/schema.h"

namespace fullshard::config {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw base::Error(base::ErrorCode::kConfiguration, message);
}

/// All that is wrong with one file, told in the order of its lines.
class Faults {
 public:
  void add(std::uint32_t line, const std::string& message) { faults_.emplace_back(line, message); }

  void throw_if_any() {
    if (faults_.empty()) return;
    std::ranges::stable_sort(faults_, {}, &std::pair<std::uint32_t, std::string>::first);
    std::vector<std::string> lines;
    for (const auto& fault : faults_) lines.push_back(fault.second);
    fail(fmt::format("{}", fmt::join(lines, "\n")));
  }

 private:
  std::vector<std::pair<std::uint32_t, std::string>> faults_;
};

/// The value of a TOML leaf; text in TOML's own form for whatever no field can hold.
Value to_value(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* array = node.as_array(); array != nullptr) {
    std::vector<std::string> items;
    for (const toml::node& item : *array) {
      if (const auto* text = item.as_string()) items.push_back(text->get());
    }
    if (items.size() == array->size()) return items;
  }
  std::ostringstream text;
  node.visit([&text](const auto& typed) { text << typed; });
  return text.str();
}

class TomlReader {
 public:
  TomlReader(TrainConfig& config, std::string name) : config_(config), name_(std::move(name)) {}

  void read(const toml::table& document) {
    for (const auto& [key, node] : document) read_section(key, node);
    faults_.throw_if_any();
  }

 private:
  std::string at(const toml::key& key) const {
    return fmt::format("{}:{}", name_, key.source().begin.line);
  }

  void add(const toml::key& key, const std::string& message) {
    faults_.add(key.source().begin.line, fmt::format("{}: {}", at(key), message));
  }

  void read_section(const toml::key& key, const toml::node& node) {
    const std::string section(key.str());
    const std::vector<std::string> known = section_names();
    if (!node.is_table()) return add(key, unknown_key(section) + " (keys stand in sections)");
    if (std::ranges::find(known, section) == known.end()) return unknown_section(key, known);
    for (const auto& [name, value] : *node.as_table()) read_field(section, name, value);
  }

  void unknown_section(const toml::key& key, const std::vector<std::string>& known) {
    const std::string nearest = base::nearest_name(key.str(), known);
    const std::string help = nearest.empty()
                                 ? fmt::format("known ones are {}", fmt::join(known, ", "))
                                 : fmt::format("the nearest known one is [{}]", nearest);
    add(key, fmt::format("unknown section [{}]; {}", key.str(), help));
  }

  void read_field(const std::string& section, const toml::key& name, const toml::node& node) {
    const std::string key = section + "." + std::string(name.str());
    const Field* field = find_field(key);
    if (field == nullptr) return add(name, unknown_key(key));
    const auto problem = assign(config_, *field, to_value(node), key);
    if (problem) add(name, *problem);
  }

  TrainConfig& config_;
  std::string name_;
  Faults faults_;
};

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (std::filesystem::is_directory(path)) {
    errno = EISDIR;
    file.setstate(std::ios::failbit);
  }
  if (file) text << file.rdbuf();
  if (!file)
    fail(fmt::format("{}: cannot read this configuration file: {}", path, strerror(errno)));
  return text.str();
}

}  // namespace

void apply_toml(TrainConfig& config, const std::string& text, const std::string& name) {
  const toml::parse_result result = toml::parse(text, name);
  if (result.failed()) {
    const toml::parse_error& error = result.error();
    fail(fmt::format("{}:{}: not valid TOML: {}", name, error.source().begin.line,
                     error.description()));
  }
  TrainConfig changed = config;
  TomlReader(changed, name).read(result.table());
  config = std::move(changed);
}

void apply_toml_file(TrainConfig& config, const std::string& path) {
  apply_toml(config, read_file(path), path);
}

void apply_flags(TrainConfig& config, const std::vector<Flag>& flags) {
  TrainConfig changed = config;
  Faults faults;
  for (const auto& [key, text] : flags) {
    const Field* field = find_field(key);
    if (field == nullptr) {
      faults.add(0, unknown_key(key, "--"));
      continue;
    }
    const auto problem = assign(changed, *field, parse_text(*field, text), "--" + key);
    if (problem) faults.add(0, *problem);
  }
  faults.throw_if_any();
  config = std::move(changed);
}

}  // namespace fullshard::config
