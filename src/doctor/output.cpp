#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "doctor/findings.h"
#include "fullshard/base/text.h"
#include "fullshard/doctor/trace.h"

namespace fullshard::doctor {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(Place::State state) {
  switch (state) {
    case Place::State::kNoRecord: return "no record";
    case Place::State::kNowhere: return "nothing begun";
    case Place::State::kInside: return "inside";
    case Place::State::kFailed: return "failed";
    case Place::State::kFinished: return "finished";
  }
  return "";
}

std::string group_text(const GroupReport& group) {
  std::string text = fmt::format("\nGroup {} ({}); ", group.name, base::name_ranks(group.ranks));
  if (group.last_common == 0) {
    text += "no operation that all finished\n";
  } else {
    text += fmt::format("the last operation that all finished is #{} {}\n", group.last_common,
                        group.last_common_call);
  }
  for (const Place& place : group.places) {
    text += fmt::format("  rank {:<4} {}\n", place.rank, describe(place));
  }
  return text;
}

Json to_object(const Place& place) {
  Json out = {{"rank", place.rank}, {"state", name_of(place.state)}};
  if (place.sequence > 0) out["sequence"] = place.sequence;
  if (!place.call.empty()) out["call"] = place.call;
  if (place.seconds >= 0) out["seconds"] = place.seconds;
  return out;
}

Json to_object(const GroupReport& group) {
  Json places = Json::array();
  for (const Place& place : group.places) places.push_back(to_object(place));
  Json out = {{"name", group.name},
              {"ranks", group.ranks},
              {"last_common", group.last_common},
              {"last_common_call", group.last_common_call},
              {"inside", group.inside},
              {"missing", group.missing},
              {"places", places}};
  if (group.calls.empty()) return out;
  Json calls = Json::array();
  for (const Call& call : group.calls)
    calls.push_back({{"call", call.call}, {"ranks", call.ranks}});
  out["different"] = {{"sequence", group.different}, {"calls", calls}};
  return out;
}

Json to_object(const WaitReport& wait) {
  return {{"group", wait.group},     {"board", wait.board},     {"call", wait.call},
          {"waiting", wait.waiting}, {"missing", wait.missing}, {"no_record", wait.no_record}};
}

template <typename T>
Json to_array(const std::vector<T>& items) {
  Json out = Json::array();
  for (const T& item : items) out.push_back(to_object(item));
  return out;
}

Json record_facts(const comm::FlightRecord& record) {
  return {{"rank", record.rank},     {"host", record.host},
          {"pid", record.pid},       {"written_us", record.written_us},
          {"reason", record.reason}, {"operations", record.operations}};
}

}  // namespace

std::string to_text(const TraceReport& report) {
  std::string text =
      fmt::format("Flight records of {} of {} ranks.\n", report.records.size(), report.world_size);
  for (const std::string& remark : report.remarks) text += remark + "\n";
  text += "\n";
  for (const std::string& finding : report.findings) text += finding + "\n";
  for (const GroupReport& group : report.groups) text += group_text(group);
  text += "\nLast of each rank, and why its record was written\n";
  for (const comm::FlightRecord& record : report.records) {
    text += fmt::format("  rank {:<4} {} (host {}, process {})\n            {}\n", record.rank,
                        last_act(record), record.host, record.pid,
                        record.reason.empty() ? "no reason given" : record.reason);
  }
  return text;
}

std::string to_json(const TraceReport& report) {
  Json records = Json::array();
  for (const comm::FlightRecord& record : report.records) records.push_back(record_facts(record));
  const Json out = {{"world_size", report.world_size}, {"records", records},
                    {"no_record", report.no_record},   {"findings", report.findings},
                    {"remarks", report.remarks},       {"groups", to_array(report.groups)},
                    {"waits", to_array(report.waits)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fullshard::doctor
