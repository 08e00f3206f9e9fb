#include "fullshard/bench/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "bench/contender.h"
#include "bench/progress.h"
#include "bench/report_file.h"
#include "bench/step_report.h"
#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::bench {
namespace {

/// Most by which losses and the gradient's norm may differ, relative: what fp32 sums in another
/// order and a few steps of AdamW leave, and far less than any fault would.
constexpr double kTolerance = 1e-4;
/// Batch normalisation spreads rounding errors further from step to step.
constexpr double kToleranceWithBatchNorm = 1e-3;

double tolerance_of(const StepShape& shape) {
  return shape.model == "resnet" ? kToleranceWithBatchNorm : kTolerance;
}

/// Steps of a run for memory: the optimizer's state is there from the second on.
constexpr int kMemorySteps = 3;

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

void validate(const StepBenchOptions& options) {
  if (options.units.empty() || options.atoms.empty()) {
    reject("--units and --atoms: expected one value at least");
  }
  std::set<std::string> seen;
  for (const auto& [name, spec] : sharded_specs(options)) {
    validate(spec);
    if (!seen.insert(spec.units + " " + spec.atom).second) {
      reject("--units and --atoms: the same value stands there twice");
    }
  }
  if (options.pairs < 1) {
    reject(fmt::format("--pairs: found {}; expected an integer, 1 or more", options.pairs));
  }
  if (options.peer.empty() != options.peer_python.empty()) {
    reject("--peer and --peer-python belong together: the script, and the Python that runs it");
  }
  if (!options.peer.empty() && !std::filesystem::is_regular_file(options.peer)) {
    reject(fmt::format("--peer: there is no file '{}'", options.peer));
  }
}

double others_share(double busy_seconds, const ChildEnd& end, int cpus) {
  const double all = end.wall_seconds * cpus;
  return std::clamp((busy_seconds - end.cpu_seconds) / all, 0.0, 1.0);
}

class StepBench {
 public:
  StepBench(const StepBenchOptions& options, const BenchConsole& console)
      : contenders_(make_contenders(options)),
        report_{.options = options, .machine = describe_machine(), .measured = {}},
        progress_(console, kinds_of_runs()) {
    for (const Contender& contender : contenders_) {
      report_.measured.push_back({.name = contender.name, .runs = {}, .memory = std::nullopt});
    }
  }

  /// Memory comes first: it also warms what the machine keeps of files.
  const StepReport& run() {
    for (std::size_t i = 0; i < contenders_.size() && options().memory; ++i) measure_memory(i);
    for (int round = 0; round < options().pairs; ++round) measure_round(round);
    return report_;
  }

  /// What there is after an end in mid-work: complete rounds only, null when there is none.
  const StepReport* complete_rounds() {
    for (Measured& measured : report_.measured) measured.runs.resize(rounds_);
    return rounds_ > 0 ? &report_ : nullptr;
  }

  void interrupt() { progress_.interrupt(); }

 private:
  const StepBenchOptions& options() const { return report_.options; }

  /// Every other round in the opposite order, so that a steady drift of the machine favours no one.
  std::vector<std::size_t> order_of(int round) const {
    std::vector<std::size_t> order(contenders_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (round % 2 == 1) std::ranges::reverse(order);
    return order;
  }

  std::vector<std::string> kinds_of_runs() const {
    std::vector<std::string> kinds;
    for (const Contender& contender : contenders_) {
      if (options().memory) kinds.push_back("memory of " + contender.name);
    }
    for (int round = 0; round < options().pairs; ++round) {
      for (const std::size_t i : order_of(round)) kinds.push_back(contenders_[i].name);
    }
    return kinds;
  }

  /// Makes a run, once more if it fails and its contender may.
  ChildEnd succeed(std::size_t which, const std::function<ChildEnd()>& run) {
    const Contender& contender = contenders_[which];
    for (int attempt = 1;; ++attempt) {
      ChildEnd end = run();
      if (attempt == contender.attempts) require_success(contender.name, end);
      if (end.exit_code == 0) return end;
      ++report_.measured[which].failed_runs;
      progress_.note(fmt::format("failed with exit code {}, once more", end.exit_code));
    }
  }

  void measure_memory(std::size_t which) {
    const Contender& contender = contenders_[which];
    MemoryPeak peak;
    succeed(which, [&] {
      progress_.start(fmt::format("memory, {}", contender.name));
      const MemoryGate gate;
      ChildProcess child(contender.invoke(kMemorySteps, gate.folder()), signals_);
      peak = follow_memory(child, gate, contender.processes);
      return child.end();
    });
    if (peak.samples == 0) {
      throw base::Error(
          base::ErrorCode::kSystem,
          fmt::format("'{}' has ended without stopping where its memory is read", contender.name));
    }
    report_.measured[which].memory = peak;
    progress_.finish(
        fmt::format("{:.0f} MiB above base", static_cast<double>(peak.above_base()) / (1 << 20)));
  }

  void measure_round(int round) {
    for (const std::size_t i : order_of(round)) measure_speed(i, round);
    const auto& plain = report_.measured[0].runs.back().result.details;
    for (std::size_t i = 1; i < contenders_.size() && contenders_[i].ours; ++i) {
      const auto& sharded = report_.measured[i].runs.back().result.details;
      FULLSHARD_CHECK(plain && sharded);
      report_.largest_difference =
          std::max(report_.largest_difference,
                   verify_same_training(*plain, *sharded, tolerance_of(options().spec.shape)));
    }
    ++rounds_;
  }

  void measure_speed(std::size_t which, int round) {
    constexpr base::Duration kTick = std::chrono::seconds(1);
    const Contender& contender = contenders_[which];
    double busy = 0;
    const ChildEnd end = succeed(which, [&] {
      progress_.start(
          fmt::format("round {} of {}, {}", round + 1, options().pairs, contender.name));
      const double busy_before = busy_cpu_seconds();
      ChildProcess child(contender.invoke(options().spec.steps, ""), signals_);
      while (!child.wait(kTick)) progress_.tick();
      busy = busy_cpu_seconds() - busy_before;
      return child.end();
    });
    StepRun run{.result = parse_step_result(end.output, fmt::format("'{}'", contender.name)),
                .wall_seconds = end.wall_seconds,
                .others_share = others_share(busy, end, report_.machine.cpus)};
    progress_.finish(
        fmt::format("{:.1f} {}/s", run.result.tokens_per_second, counted(options().spec.shape)));
    report_.measured[which].runs.push_back(std::move(run));
  }

  const HeldSignals signals_;
  const std::vector<Contender> contenders_;
  StepReport report_;
  Progress progress_;
  std::size_t rounds_ = 0;  ///< complete and verified
};

void show(const StepReport& report, const BenchConsole& console, ReportFile& json) {
  std::fprintf(console.report, "\n%s", report_text(report).c_str());
  std::fflush(console.report);
  json.write(report_json(report));
}

}  // namespace

int run_step_bench(const StepBenchOptions& options, const BenchConsole& console) {
  validate(options);
  ReportFile json(options.json);
  StepBench bench(options, console);
  try {
    show(bench.run(), console, json);
    return 0;
  } catch (const Stopped& stopped) {
    bench.interrupt();
    if (const StepReport* report = bench.complete_rounds()) show(*report, console, json);
    std::fprintf(console.progress, "fullshard: stopped by SIG%s\n", sigabbrev_np(stopped.signal));
    return 128 + stopped.signal;
  } catch (const base::Error& error) {
    bench.interrupt();
    // After hours of work, not all shall be lost because one run has failed.
    const StepReport* report =
        error.code() == base::ErrorCode::kSystem ? bench.complete_rounds() : nullptr;
    if (report != nullptr) show(*report, console, json);
    throw;
  }
}

}  // namespace fullshard::bench
