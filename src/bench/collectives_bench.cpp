#include "fullshard/bench/collectives_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bench/contender.h"
#include "bench/machine.h"
#include "bench/progress.h"
#include "bench/report_file.h"
#include "bench/table.h"
#include "fullshard/base/error.h"
#include "fullshard/bench/statistics.h"

namespace fullshard::bench {
namespace {

constexpr std::array<const char*, 2> kBackends = {"shm", "gloo"};

using Case = std::pair<std::string, std::int64_t>;  // operation, bytes

/// Seconds by round.
struct Times {
  std::vector<double> of(const std::string& backend, const Case& what) const {
    const auto found = seconds.find({backend, what});
    return found == seconds.end() ? std::vector<double>() : found->second;
  }
  std::vector<Case> cases;  ///< in the order of measuring
  std::map<std::pair<std::string, Case>, std::vector<double>> seconds;
};

std::string size_text(std::int64_t bytes) {
  if (bytes == 0) return "";
  if (bytes % (1 << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes % (1 << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6)
                        : fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string spread_text(const std::vector<double>& values, std::string_view form) {
  const Spread all = spread(values);
  return fmt::format(fmt::runtime(fmt::format("{{:{0}}} ({{:{0}}}-{{:{0}}})", form)), all.median,
                     all.low, all.high);
}

class Report {
 public:
  Report(const CollectivesBenchOptions& options, const Times& times)
      : options_(options), times_(times) {}

  std::string text() const {
    std::vector<std::vector<std::string>> rows = {
        {"operation", "size", "shm", "gloo", "gloo / shm", "moved", "of copy"}};
    for (const Case& what : times_.cases) rows.push_back(row(what));
    return fmt::format(
        "{} ranks, {} rounds; medians, and of ratios the lowest and the highest round\n\n{}\n"
        "moved: bytes that a rank has to read and write at least, over shm's time, in GB/s\n"
        "of copy: that against a memory copy of the same size on all ranks at once, by round\n",
        options_.spec.ranks, options_.rounds, render_table(rows));
  }

  std::string json() const {
    nlohmann::ordered_json json = {{"command_line", options_.command_line},
                                   {"machine", describe_machine().cpu},
                                   {"ranks", options_.spec.ranks},
                                   {"rounds", options_.rounds}};
    for (const Case& what : times_.cases) {
      nlohmann::ordered_json entry = {{"operation", what.first}, {"bytes", what.second}};
      for (const char* backend : kBackends) {
        const auto seconds = times_.of(backend, what);
        if (!seconds.empty()) entry["seconds"][backend] = seconds;
      }
      json["cases"].push_back(std::move(entry));
    }
    return json.dump(2) + "\n";
  }

 private:
  std::vector<std::string> row(const Case& what) const {
    const auto& [operation, bytes] = what;
    const std::vector<double> shm = times_.of("shm", what);
    const std::vector<double> gloo =
        operation == "copy" ? std::vector<double>() : times_.of("gloo", what);
    std::vector<std::string> cells = {operation, size_text(bytes)};
    cells.push_back(shm.empty() ? "" : time_text(median(shm)));
    cells.push_back(gloo.empty() ? "" : time_text(median(gloo)));
    const bool both = !shm.empty() && !gloo.empty();
    cells.push_back(both ? spread_text(ratios(gloo, shm), ".1f") : "");
    const std::int64_t moved = least_moved_bytes(operation, bytes, options_.spec.ranks);
    if (moved == 0 || shm.empty()) return cells;
    cells.push_back(fmt::format("{:.1f}", static_cast<double>(moved) / median(shm) * 1e-9));
    const std::vector<double> copy = times_.of("shm", {"copy", bytes});
    if (operation == "copy" || copy.empty()) return cells;
    std::vector<double> shares = ratios(copy, shm);
    const auto copied = static_cast<double>(least_moved_bytes("copy", bytes, options_.spec.ranks));
    for (double& share : shares) share *= 100 * static_cast<double>(moved) / copied;
    cells.push_back(spread_text(shares, ".0f") + " %");
    return cells;
  }

  const CollectivesBenchOptions& options_;
  const Times& times_;
};

class CollectivesBench {
 public:
  CollectivesBench(const CollectivesBenchOptions& options, const BenchConsole& console)
      : options_(options), progress_(console, kinds_of_runs(options.rounds)) {}

  const Times& run() {
    for (int round = 0; round < options_.rounds; ++round) {
      for (const char* backend : kBackends) measure(backend, round);
    }
    return times_;
  }

  void interrupt() { progress_.interrupt(); }

 private:
  static std::vector<std::string> kinds_of_runs(int rounds) {
    std::vector<std::string> kinds;
    for (int round = 0; round < rounds; ++round) {
      kinds.insert(kinds.end(), kBackends.begin(), kBackends.end());
    }
    return kinds;
  }

  void measure(const std::string& backend, int round) {
    constexpr base::Duration kTick = std::chrono::seconds(1);
    CollectivesSpec spec = options_.spec;
    spec.backend = backend;
    std::vector<std::string> command = options_.measure;
    command.push_back(to_json(spec));
    progress_.start(fmt::format("round {} of {}, {}", round + 1, options_.rounds, backend));
    ChildProcess child(make_invocation(std::move(command), 1), signals_);
    while (!child.wait(kTick)) progress_.tick();
    const ChildEnd end = child.end();
    require_success(backend, end);
    progress_.finish(fmt::format("{:.0f} s", end.wall_seconds));
    for (const CollectiveTime& time :
         parse_collective_times(end.output, fmt::format("'{}'", backend))) {
      const Case what{time.operation, time.bytes};
      if (std::ranges::find(times_.cases, what) == times_.cases.end()) times_.cases.push_back(what);
      times_.seconds[{backend, what}].push_back(time.seconds);
    }
  }

  const HeldSignals signals_;
  const CollectivesBenchOptions& options_;
  Progress progress_;
  Times times_;
};

}  // namespace

int run_collectives_bench(const CollectivesBenchOptions& options, const BenchConsole& console) {
  validate(options.spec);
  if (options.rounds < 1) {
    throw base::Error(
        base::ErrorCode::kUsage,
        fmt::format("--rounds: found {}; expected an integer, 1 or more", options.rounds));
  }
  ReportFile json(options.json);
  CollectivesBench bench(options, console);
  try {
    const Report report(options, bench.run());
    std::fprintf(console.report, "\n%s", report.text().c_str());
    std::fflush(console.report);
    json.write(report.json());
    return 0;
  } catch (const Stopped& stopped) {
    bench.interrupt();
    std::fprintf(console.progress, "fullshard: stopped by SIG%s\n", sigabbrev_np(stopped.signal));
    return 128 + stopped.signal;
  }
}

}  // namespace fullshard::bench
