// Flight records as JSON: an object whose lists have one element a line, for people and for diff.

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/comm/flight_record.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "fullshard flight record";
constexpr int kVersion = 1;

constexpr std::array<std::pair<FlightState, std::string_view>, 3> kStates = {
    {{FlightState::kStarted, "started"},
     {FlightState::kFinished, "finished"},
     {FlightState::kFailed, "failed"}}};
constexpr std::array<std::pair<FlightKind, std::string_view>, 3> kKinds = {
    {{FlightKind::kCollective, "collective"},
     {FlightKind::kPost, "post"},
     {FlightKind::kWait, "wait"}}};

template <typename Table, typename Value>
std::string name_in(const Table& table, Value value) {
  for (const auto& [known, name] : table) {
    if (known == value) return std::string(name);
  }
  return "";
}

template <typename Table>
auto value_in(const Table& table, const std::string& name) {
  for (const auto& [value, known] : table) {
    if (known == name) return value;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' stands where one of '{}', '{}' and "
                          "'{}' is expected",
                          name, table[0].second, table[1].second, table[2].second));
}

Json to_object(const FlightGroup& group) {
  return {{"name", group.name},
          {"ranks", group.ranks},
          {"begun", group.begun},
          {"finished", group.finished}};
}

Json to_object(const FlightBoard& board) {
  return {{"group", board.group},
          {"made_by", board.made_by},
          {"purpose", board.purpose},
          {"posted", board.posted}};
}

void add_collective(Json& out, const FlightEntry& entry) {
  if (!entry.dtype.empty()) out["dtype"] = entry.dtype;
  if (!entry.reduction.empty()) out["reduction"] = entry.reduction;
  if (entry.root >= 0) out["root"] = entry.root;
  out["count"] = entry.count;
  out["bytes"] = entry.bytes;
  if (entry.counts_hash != 0) out["counts_hash"] = entry.counts_hash;
}

void add_signal(Json& out, const FlightEntry& entry) {
  out["board"] = entry.board;
  out["made_by"] = entry.made_by;
  out["counter"] = entry.counter;
  out["value"] = entry.value;
}

Json to_object(const FlightEntry& entry) {
  const bool collective = entry.kind == FlightKind::kCollective;
  Json out = {{"kind", name_in(kKinds, entry.kind)}, {"group", entry.group}};
  if (collective) out["sequence"] = entry.sequence;
  out["operation"] = entry.operation;
  if (!entry.unit.empty()) out["unit"] = entry.unit;
  if (entry.step >= 0) out["step"] = entry.step;
  if (collective) add_collective(out, entry);
  if (!collective) add_signal(out, entry);
  out["began_us"] = entry.began_us;
  if (entry.ended_us) out["ended_us"] = *entry.ended_us;
  out["state"] = name_in(kStates, entry.state);
  return out;
}

template <typename T>
std::string lines(const std::vector<T>& items) {
  std::string text = "[";
  for (const T& item : items) {
    text += text.size() == 1 ? "\n    " : ",\n    ";
    // Names come from users: what is not UTF-8 must not cost the whole record.
    text += to_object(item).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text + "]";
}

FlightGroup group_of(const Json& from) {
  return {from.at("name").get<std::string>(), from.at("ranks").get<std::vector<int>>(),
          from.at("begun").get<std::uint64_t>(), from.at("finished").get<std::uint64_t>()};
}

FlightBoard board_of(const Json& from) {
  return {from.at("group").get<std::size_t>(), from.at("made_by").get<std::uint64_t>(),
          from.at("purpose").get<std::string>(),
          from.at("posted").get<std::vector<std::uint64_t>>()};
}

FlightEntry entry_of(const Json& from) {
  FlightEntry entry;
  entry.kind = value_in(kKinds, from.at("kind").get<std::string>());
  entry.state = value_in(kStates, from.at("state").get<std::string>());
  entry.group = from.at("group").get<std::size_t>();
  entry.operation = from.at("operation").get<std::string>();
  entry.unit = from.value("unit", "");
  entry.step = from.value("step", std::int64_t{-1});
  entry.began_us = from.at("began_us").get<std::int64_t>();
  if (from.contains("ended_us")) entry.ended_us = from.at("ended_us").get<std::int64_t>();
  if (entry.kind != FlightKind::kCollective) {
    entry.board = from.at("board").get<std::string>();
    entry.made_by = from.at("made_by").get<std::uint64_t>();
    entry.counter = from.at("counter").get<std::size_t>();
    entry.value = from.at("value").get<std::uint64_t>();
    return entry;
  }
  entry.sequence = from.at("sequence").get<std::uint64_t>();
  entry.dtype = from.value("dtype", "");
  entry.reduction = from.value("reduction", "");
  entry.root = from.value("root", -1);
  entry.count = from.at("count").get<std::int64_t>();
  entry.bytes = from.at("bytes").get<std::int64_t>();
  entry.counts_hash = from.value("counts_hash", std::uint64_t{0});
  return entry;
}

void check_format(const Json& from) {
  if (!from.is_object() || from.value("format", "") != kFormat) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("it is no flight record: \"format\": \"{}\" is missing", kFormat));
  }
  const int version = from.at("version").get<int>();
  if (version == kVersion) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("it is a flight record of version {}, and this program reads version {}",
                          version, kVersion));
}

void check_group(std::size_t group, const FlightRecord& record) {
  if (group < record.groups.size()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("an entry is of group {}, and there are {} groups", group, record.groups.size()));
}

FlightRecord record_of(const Json& from) {
  check_format(from);
  FlightRecord record;
  record.rank = from.at("rank").get<int>();
  record.world_size = from.at("world_size").get<int>();
  record.host = from.at("host").get<std::string>();
  record.pid = from.at("pid").get<int>();
  record.written_us = from.at("written_us").get<std::int64_t>();
  record.reason = from.at("reason").get<std::string>();
  record.operations = from.at("operations").get<std::uint64_t>();
  for (const Json& group : from.at("groups")) record.groups.push_back(group_of(group));
  for (const Json& board : from.at("boards")) {
    record.boards.push_back(board_of(board));
    check_group(record.boards.back().group, record);
  }
  for (const Json& entry : from.at("entries")) {
    record.entries.push_back(entry_of(entry));
    check_group(record.entries.back().group, record);
  }
  if (record.rank >= 0 && record.rank < record.world_size) return record;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("it says it is of rank {} of {} ranks", record.rank, record.world_size));
}

}  // namespace

std::string to_json(const FlightRecord& record) {
  const Json head = {{"format", kFormat},
                     {"version", kVersion},
                     {"rank", record.rank},
                     {"world_size", record.world_size},
                     {"host", record.host},
                     {"pid", record.pid},
                     {"written_us", record.written_us},
                     {"reason", record.reason},
                     {"operations", record.operations}};
  std::string text = "{\n";
  for (const auto& [key, value] : head.items()) {
    text += fmt::format("  \"{}\": {},\n", key,
                        value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return text + fmt::format("  \"groups\": {},\n  \"boards\": {},\n  \"entries\": {}\n}}\n",
                            lines(record.groups), lines(record.boards), lines(record.entries));
}

FlightRecord parse_flight_record(std::string_view json) {
  try {
    return record_of(Json::parse(json));
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("it cannot be read as a flight record: {}", error.what()));
  }
}

FlightRecord read_flight_record(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in || std::filesystem::is_directory(file)) {
    throw Error(ErrorCode::kFile, fmt::format("cannot read the flight record {}; name the files "
                                              "flight_rank*.json that the ranks wrote",
                                              file.string()));
  }
  try {
    return parse_flight_record(text.str());
  } catch (const Error& error) {
    throw Error(ErrorCode::kFile, fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace fullshard::comm
