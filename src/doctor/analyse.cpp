#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "doctor/findings.h"
#include "fullshard/base/error.h"
#include "fullshard/doctor/trace.h"

namespace fullshard::doctor {
namespace {

using comm::FlightEntry;
using comm::FlightGroup;
using comm::FlightKind;
using comm::FlightRecord;
using comm::FlightState;

double seconds_between(std::int64_t from_us, std::int64_t to_us) {
  return static_cast<double>(to_us - from_us) * 1e-6;
}

// One rank's part of a group.
struct Member {
  int rank = 0;
  const FlightRecord* record = nullptr;  // null = no file
  const FlightGroup* group = nullptr;    // null = it never made the group
  std::map<std::uint64_t, const FlightEntry*> calls;

  std::uint64_t begun() const { return group == nullptr ? 0 : group->begun; }
  std::uint64_t finished() const { return group == nullptr ? 0 : group->finished; }
  const FlightEntry* at(std::uint64_t sequence) const {
    const auto found = calls.find(sequence);
    return found == calls.end() ? nullptr : found->second;
  }
};

Member member_of(int rank, const std::string& group, const std::vector<FlightRecord>& records) {
  Member member{.rank = rank};
  const auto record = std::ranges::find(records, rank, &FlightRecord::rank);
  if (record == records.end()) return member;
  member.record = &*record;
  const auto own = std::ranges::find(record->groups, group, &FlightGroup::name);
  if (own == record->groups.end()) return member;
  member.group = &*own;
  const auto index = static_cast<std::size_t>(own - record->groups.begin());
  for (const FlightEntry& entry : record->entries) {
    if (entry.kind == FlightKind::kCollective && entry.group == index) {
      member.calls[entry.sequence] = &entry;
    }
  }
  return member;
}

Place place_of(const Member& member) {
  Place place{.rank = member.rank};
  if (member.record == nullptr) return place;
  place.state = Place::State::kNowhere;
  if (member.begun() == 0) return place;
  place.sequence = member.begun();
  place.state =
      member.begun() > member.finished() ? Place::State::kInside : Place::State::kFinished;
  const FlightEntry* entry = member.at(place.sequence);
  if (entry == nullptr) return place;
  if (entry->state == FlightState::kFailed) place.state = Place::State::kFailed;
  place.call = describe(*entry);
  const std::int64_t since = entry->ended_us.value_or(entry->began_us);
  place.seconds = seconds_between(since, member.record->written_us);
  return place;
}

auto call_of(const FlightEntry& entry) {
  return std::tie(entry.operation, entry.unit, entry.step, entry.dtype, entry.reduction, entry.root,
                  entry.count, entry.bytes, entry.counts_hash);
}

// The calls that ranks made under one number, each with who made it.
std::vector<Call> calls_at(std::uint64_t sequence, const std::vector<Member>& members) {
  std::vector<const FlightEntry*> kinds;
  std::vector<Call> calls;
  for (const Member& member : members) {
    const FlightEntry* entry = member.at(sequence);
    if (entry == nullptr) continue;
    const auto same = std::ranges::find_if(
        kinds, [&](const FlightEntry* kind) { return call_of(*kind) == call_of(*entry); });
    const auto index = static_cast<std::size_t>(same - kinds.begin());
    if (same == kinds.end()) {
      kinds.push_back(entry);
      calls.push_back({describe(*entry), {}});
    }
    calls[index].ranks.push_back(member.rank);
  }
  return calls;
}

void find_difference(GroupReport& report, const std::vector<Member>& members) {
  std::set<std::uint64_t> numbers;
  for (const Member& member : members) {
    for (const auto& [sequence, entry] : member.calls) numbers.insert(sequence);
  }
  for (const std::uint64_t sequence : numbers) {
    std::vector<Call> calls = calls_at(sequence, members);
    if (calls.size() < 2) continue;
    report.different = sequence;
    report.calls = std::move(calls);
    return;
  }
}

void find_missing(GroupReport& report, const std::vector<Member>& members) {
  std::uint64_t common = std::numeric_limits<std::uint64_t>::max();
  for (const Member& member : members) {
    if (member.record != nullptr) common = std::min(common, member.finished());
  }
  report.last_common = common;
  for (const Member& member : members) {
    if (member.record == nullptr) continue;
    if (member.begun() > common && member.finished() <= common)
      report.inside.push_back(member.rank);
    if (member.begun() <= common) report.missing.push_back(member.rank);
    const FlightEntry* entry = member.at(common);
    if (entry != nullptr) report.last_common_call = describe(*entry);
  }
  const bool anyone_further =
      std::ranges::any_of(members, [&](const Member& member) { return member.begun() > common; });
  if (!anyone_further) report.missing.clear();
}

GroupReport report_of(const FlightGroup& group, const std::vector<FlightRecord>& records) {
  GroupReport report{.name = group.name, .ranks = group.ranks};
  std::vector<Member> members;
  for (const int rank : group.ranks) members.push_back(member_of(rank, group.name, records));
  for (const Member& member : members) report.places.push_back(place_of(member));
  find_missing(report, members);
  find_difference(report, members);
  return report;
}

std::vector<GroupReport> group_reports(const std::vector<FlightRecord>& records) {
  std::vector<GroupReport> reports;
  for (const FlightRecord& record : records) {
    for (const FlightGroup& group : record.groups) {
      const bool known = std::ranges::any_of(
          reports, [&](const GroupReport& report) { return report.name == group.name; });
      if (!known && group.ranks.size() > 1) reports.push_back(report_of(group, records));
    }
  }
  return reports;
}

// A board is made by one operation of its group, whose number is the same on all ranks.
struct WaitKey {
  std::string group;
  std::uint64_t made_by = 0;
  std::size_t counter = 0;
  std::uint64_t value = 0;
  auto operator<=>(const WaitKey&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

bool has_posted(const FlightRecord& record, const WaitKey& key) {
  for (const comm::FlightBoard& board : record.boards) {
    if (record.groups[board.group].name != key.group || board.made_by != key.made_by) continue;
    return key.counter < board.posted.size() && board.posted[key.counter] >= key.value;
  }
  return false;
}

void sort_others(WaitReport& wait, const WaitKey& key, const std::vector<int>& ranks,
                 const std::vector<FlightRecord>& records) {
  for (const int rank : ranks) {
    const auto record = std::ranges::find(records, rank, &FlightRecord::rank);
    if (record == records.end()) {
      wait.no_record.push_back(rank);
    } else if (!has_posted(*record, key)) {
      wait.missing.push_back(rank);
    }
  }
}

std::vector<WaitReport> wait_reports(const std::vector<FlightRecord>& records) {
  std::map<WaitKey, WaitReport> waits;
  std::map<WaitKey, std::vector<int>> members;
  for (const FlightRecord& record : records) {
    for (const FlightEntry& entry : record.entries) {
      if (entry.kind != FlightKind::kWait || entry.state == FlightState::kFinished) continue;
      const FlightGroup& group = record.groups[entry.group];
      const WaitKey key{group.name, entry.made_by, entry.counter, entry.value};
      WaitReport& wait = waits[key];
      wait.group = group.name;
      wait.board = entry.board;
      wait.call = describe(entry);
      wait.waiting.push_back(record.rank);
      members[key] = group.ranks;
    }
  }
  std::vector<WaitReport> reports;
  for (auto& [key, wait] : waits) {
    sort_others(wait, key, members[key], records);
    if (!wait.missing.empty() || !wait.no_record.empty()) reports.push_back(std::move(wait));
  }
  return reports;
}

}  // namespace

TraceReport analyse(std::vector<FlightRecord> records) {
  if (records.empty()) {
    throw base::Error(base::ErrorCode::kInvalidArgument, "no flight records to compare");
  }
  std::ranges::sort(records, {}, &FlightRecord::rank);
  TraceReport report;
  report.world_size = records.front().world_size;
  report.records = std::move(records);
  for (int rank = 0; rank < report.world_size; ++rank) {
    if (std::ranges::find(report.records, rank, &FlightRecord::rank) == report.records.end()) {
      report.no_record.push_back(rank);
    }
  }
  report.groups = group_reports(report.records);
  report.waits = wait_reports(report.records);
  add_findings(report);
  return report;
}

}  // namespace fullshard::doctor
