#include "doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/text.h"

namespace fullshard::doctor {
namespace {

using comm::FlightEntry;
using comm::FlightKind;
using comm::FlightRecord;
using comm::FlightState;

constexpr double kFarApart = 600;  // seconds between files that hardly are of one moment

const char* verb(const std::vector<int>& ranks, const char* one, const char* many) {
  return ranks.size() == 1 ? one : many;
}

std::string seconds_text(double seconds) { return fmt::format("{:.1f} s", std::max(seconds, 0.0)); }

std::string acts_of(const std::vector<int>& ranks, const TraceReport& report) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    const auto record = std::ranges::find(report.records, ranks[i], &FlightRecord::rank);
    if (record == report.records.end()) continue;
    text += fmt::format("; rank {} {}", ranks[i], last_act(*record));
  }
  return text;
}

std::string about_missing(const std::vector<int>& missing, const TraceReport& report) {
  return fmt::format("{} {} not come{}", base::name_ranks(missing), verb(missing, "has", "have"),
                     acts_of(missing, report));
}

std::string about_no_record(const std::vector<int>& ranks) {
  return fmt::format("of {} there is no record: stopped, gone, or not asked",
                     base::name_ranks(ranks));
}

void add_difference(const GroupReport& group, TraceReport& report) {
  if (group.calls.empty()) return;
  std::string text = fmt::format(
      "In group {} the ranks made different calls as operation #{}:", group.name, group.different);
  for (const Call& call : group.calls) {
    text += fmt::format("{} {} called {}", &call == &group.calls.front() ? "" : ";",
                        base::name_ranks(call.ranks), call.call);
  }
  report.findings.push_back(text + ".");
}

std::vector<int> without_record(const GroupReport& group) {
  std::vector<int> ranks;
  for (const Place& place : group.places) {
    if (place.state == Place::State::kNoRecord) ranks.push_back(place.rank);
  }
  return ranks;
}

void add_stall(const GroupReport& group, TraceReport& report) {
  if (!group.calls.empty() || (group.inside.empty() && group.missing.empty())) return;
  std::string text = "In group " + group.name;
  if (group.inside.empty()) {
    text += fmt::format(" some ranks have gone past operation #{}", group.last_common + 1);
  } else {
    const auto first = std::ranges::find(group.places, group.inside.front(), &Place::rank);
    text += fmt::format(" {} {} in operation #{}, {}", base::name_ranks(group.inside),
                        verb(group.inside, "is", "are"), group.last_common + 1,
                        first->call.empty() ? "which its record does not reach" : first->call);
  }
  const std::vector<int> unknown = without_record(group);
  if (!group.missing.empty()) text += "; " + about_missing(group.missing, report);
  if (!unknown.empty()) text += "; " + about_no_record(unknown);
  if (group.missing.empty() && unknown.empty()) text += "; all its ranks have come to it";
  report.findings.push_back(text + ".");
}

void add_wait(const WaitReport& wait, TraceReport& report) {
  std::string text =
      fmt::format("In group {} {} {} for {} ({})", wait.group, base::name_ranks(wait.waiting),
                  verb(wait.waiting, "waits", "wait"), wait.call, wait.board);
  if (!wait.missing.empty()) text += "; " + about_missing(wait.missing, report);
  if (!wait.no_record.empty()) text += "; " + about_no_record(wait.no_record);
  report.findings.push_back(text + ".");
}

bool has_failed(const FlightRecord& record) {
  return std::ranges::find(record.entries, FlightState::kFailed, &FlightEntry::state) !=
         record.entries.end();
}

// Ranks may have moved on between the first failure and their own record; the first to fail saw it.
void add_testimony(TraceReport& report) {
  const FlightRecord* first = nullptr;
  for (const FlightRecord& record : report.records) {
    if (record.reason.empty() || !has_failed(record)) continue;
    if (first == nullptr || record.written_us < first->written_us) first = &record;
  }
  if (first == nullptr) return;
  report.findings.push_back(
      fmt::format("Rank {} wrote its record first. Its reason: {}", first->rank, first->reason));
}

void add_remarks(TraceReport& report) {
  if (!report.no_record.empty()) {
    report.remarks.push_back(fmt::format(
        "There is no record of {}. SIGUSR2 makes a rank write one, unless it is stopped.",
        base::name_ranks(report.no_record)));
  }
  const auto [first, last] =
      std::ranges::minmax_element(report.records, {}, &FlightRecord::written_us);
  const double apart = static_cast<double>(last->written_us - first->written_us) * 1e-6;
  if (apart > kFarApart) {
    report.remarks.push_back(
        fmt::format("The records of ranks {} and {} were written {:.0f} s apart: they may be of "
                    "different runs, or of different moments.",
                    first->rank, last->rank, apart));
  }
}

}  // namespace

std::string describe(const Place& place) {
  const std::string call = fmt::format(
      "#{} {}", place.sequence, place.call.empty() ? "(further back than its record)" : place.call);
  const std::string time = place.seconds < 0 ? "?" : seconds_text(place.seconds);
  switch (place.state) {
    case Place::State::kNoRecord: return "has no record";
    case Place::State::kNowhere: return "has begun nothing in this group";
    case Place::State::kInside: return fmt::format("in {} for {}", call, time);
    case Place::State::kFailed: return fmt::format("failed in {}, {} ago", call, time);
    case Place::State::kFinished: return fmt::format("finished {}, {} ago", call, time);
  }
  return "";
}

std::string last_act(const FlightRecord& record) {
  if (record.entries.empty()) return "has done nothing yet";
  const FlightEntry& entry = record.entries.back();
  const std::string call = describe(entry);
  const auto since = [&](std::int64_t at_us) {
    return seconds_text(static_cast<double>(record.written_us - at_us) * 1e-6);
  };
  const bool waits = entry.kind == FlightKind::kWait;
  if (entry.state == FlightState::kStarted) {
    return fmt::format("{} {} for {}", waits ? "has waited for" : "has been in", call,
                       since(entry.began_us));
  }
  const std::string when = since(entry.ended_us.value_or(entry.began_us));
  if (entry.state == FlightState::kFailed) {
    return fmt::format("failed {} {}, {} ago", waits ? "waiting for" : "in", call, when);
  }
  const char* did = entry.kind == FlightKind::kPost ? "signalled"
                    : waits                         ? "waited for"
                                                    : "finished";
  return fmt::format("last {} {}, {} ago", did, call, when);
}

void add_findings(TraceReport& report) {
  for (const GroupReport& group : report.groups) add_difference(group, report);
  for (const GroupReport& group : report.groups) add_stall(group, report);
  for (const WaitReport& wait : report.waits) add_wait(wait, report);
  add_testimony(report);
  if (report.findings.empty()) {
    report.findings.emplace_back(
        "No rank waits for another: in every group the ranks have finished the same operations, or "
        "are on their way to the next.");
  }
  add_remarks(report);
}

}  // namespace fullshard::doctor
