#include "bench/step_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>

#include "bench/contender.h"
#include "bench/table.h"
#include "fullshard/base/check.h"

namespace fullshard::bench {
namespace {

using Row = std::vector<std::string>;

constexpr std::string_view kRate = "tokens/s";

/// A column of one of the tables. An empty cell means that the contender does not tell.
struct Column {
  std::string_view heading;
  const char* meaning;
  std::function<std::string(const StepReport&, const Measured&)> cell;
};

std::vector<double> over_runs(const Measured& contender, double StepResult::*field) {
  std::vector<double> values;
  for (const StepRun& run : contender.runs) values.push_back(run.result.*field);
  return values;
}

const Measured& find(const StepReport& report, std::string_view name) {
  const auto found = std::ranges::find(report.measured, name, &Measured::name);
  FULLSHARD_CHECK(found != report.measured.end());
  return *found;
}

std::string rate(double value) {
  return value < 100 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string milliseconds(const Measured& contender, double StepResult::*field) {
  const double seconds = median(over_runs(contender, field));
  return seconds > 0 ? fmt::format("{:.1f}", seconds * 1e3) : "";
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string mebibytes(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 20);
  return value < 10 ? fmt::format("{:.2f}", value) : fmt::format("{:.0f}", value);
}

std::string parameter_count(std::int64_t count) {
  return count < 1'000'000 ? fmt::format("{} parameters", count)
                           : fmt::format("{:.1f}M parameters", static_cast<double>(count) / 1e6);
}

std::string speed_cell(const Measured& contender) {
  const Spread speed = spread(over_runs(contender, &StepResult::tokens_per_second));
  return fmt::format("{} ({}-{})", rate(speed.median), rate(speed.low), rate(speed.high));
}

const StepDetails* details_of(const Measured& contender) {
  const auto& details = contender.runs.back().result.details;
  return details ? &*details : nullptr;
}

std::string counter_cell(const Measured& contender, std::int64_t StepCounters::*field) {
  const StepDetails* details = details_of(contender);
  return details && details->counters ? mebibytes((*details->counters).*field) : "";
}

std::string exposed_cell(const Measured& contender) {
  const auto share = exposed_share(contender);
  return share ? percent(*share) : "";
}

std::string others_cell(const Measured& contender) {
  const auto most = std::ranges::max(contender.runs, {}, &StepRun::others_share);
  return percent(most.others_share);
}

const std::vector<std::int64_t>* owned_by_rank(const Measured& contender) {
  const StepDetails* details = details_of(contender);
  if (!details || !details->counters || details->counters->owned_bytes.empty()) return nullptr;
  return &details->counters->owned_bytes;
}

std::string most_owned_cell(const Measured& contender) {
  const auto* owned = owned_by_rank(contender);
  return owned ? mebibytes(std::ranges::max(*owned)) : "";
}

std::string uneven_cell(const Measured& contender) {
  const auto ratio = unevenness(contender);
  return ratio ? fmt::format("{:.2f} x", *ratio) : "";
}

std::string memory_cell(const Measured& contender, std::int64_t bytes) {
  return contender.memory ? mebibytes(bytes) : "";
}

const std::vector<Column>& speed_columns() {
  static const std::vector<Column> kColumns = {
      {kRate,
       "tokens of the global batch over step time: median (lowest-highest) of the rounds; of "
       "models "
       "for images, images/s",
       [](const auto&, const auto& c) { return speed_cell(c); }},
      {"step ms", "one training step, from all ranks' start until the slowest has ended",
       [](const auto&, const auto& c) { return milliseconds(c, &StepResult::step_seconds); }},
      {"forward", "milliseconds of it in forward and loss, mean over ranks (a peer: its rank 0)",
       [](const auto&, const auto& c) { return milliseconds(c, &StepResult::forward_seconds); }},
      {"backward", "in backward, where gradients are reduced too",
       [](const auto&, const auto& c) { return milliseconds(c, &StepResult::backward_seconds); }},
      {"optimizer", "in the optimizer's step and zero_grad",
       [](const auto&, const auto& c) { return milliseconds(c, &StepResult::optimizer_seconds); }},
      {"exposed",
       "share of the step in which the rank that lost most waited for others or reduced gradients",
       [](const auto&, const auto& c) { return exposed_cell(c); }},
      {"loss", "of the last step; a peer starts from other values",
       [](const auto&, const auto& c) { return fmt::format("{:.5f}", c.runs.back().result.loss); }},
      {"others", "most of the machine's CPU time that other processes took during a run",
       [](const auto&, const auto& c) { return others_cell(c); }}};
  return kColumns;
}

const std::vector<Column>& memory_columns() {
  static const std::vector<Column> kColumns = {
      {"peak", "MiB above base: most memory of all ranks together, shared pages counted once",
       [](const auto&, const auto& c) {
         return memory_cell(c, c.memory ? c.memory->above_base() : 0);
       }},
      {"of plain", "that as a multiple of plain training's",
       [](const auto& report, const auto& c) {
         const auto ratio = memory_ratio(report, c);
         return ratio ? fmt::format("{:.2f} x", *ratio) : "";
       }},
      {"base", "MiB of all ranks with libraries loaded, before a model is built",
       [](const auto&, const auto& c) {
         return memory_cell(c, c.memory ? c.memory->base_bytes : 0);
       }},
      {"gathered", "MiB of parameters resident at once on a rank, most",
       [](const auto&, const auto& c) {
         return counter_cell(c, &StepCounters::peak_unsharded_bytes);
       }},
      {"owned", "MiB of parameters that the rank owns which owns most",
       [](const auto&, const auto& c) { return most_owned_cell(c); }},
      {"uneven", "that as a multiple of what ranks own on average",
       [](const auto&, const auto& c) { return uneven_cell(c); }},
      {"unreduced", "MiB of whole gradients held at once on a rank, most",
       [](const auto&, const auto& c) {
         return counter_cell(c, &StepCounters::peak_unreduced_gradient_bytes);
       }}};
  return kColumns;
}

std::string rate_unit(const StepReport& report) {
  return fmt::format("{}/s", counted(report.options.spec.shape));
}

std::string table(const StepReport& report, const char* heading,
                  const std::vector<Column>& columns) {
  std::vector<Row> rows = {{heading}};
  for (const Column& column : columns) {
    rows.front().push_back(column.heading == kRate ? rate_unit(report)
                                                   : std::string(column.heading));
  }
  for (const Measured& contender : report.measured) {
    Row& row = rows.emplace_back(Row{contender.name});
    for (const Column& column : columns) {
      const std::string cell = column.cell(report, contender);
      row.push_back(cell.empty() ? "-" : cell);
    }
  }
  return render_table(rows);
}

// What kept sharded training from computing; nothing where nothing was to communicate.
std::string exposure_table(const StepReport& report) {
  constexpr std::size_t kShown = 4;
  const Measured& sharded = find(report, kSharded);
  const StepDetails* details = details_of(sharded);
  if (!details || !details->counters || details->counters->units.empty()) return "";
  const auto over = [&](double StepCounters::*field) {
    std::vector<double> seconds;
    for (const StepRun& run : sharded.runs) {
      seconds.push_back((*run.result.details->counters).*field);
    }
    return median(seconds);
  };
  const double step = median(over_runs(sharded, &StepResult::step_seconds));
  std::vector<Row> rows = {{"exposed", "ms a step", "of the step"}};
  const auto add = [&](std::string name, double seconds) {
    rows.push_back(
        {std::move(name), fmt::format("{:.1f}", 1e3 * seconds), percent(seconds / step)});
  };
  add("all", over(&StepCounters::exposed_seconds));
  add("adding gradients", over(&StepCounters::reduction_seconds));
  std::vector<UnitExposure> units = details->counters->units;
  std::ranges::stable_sort(units, std::ranges::greater{}, &UnitExposure::seconds);
  for (std::size_t u = 0; u < std::min(kShown, units.size()); ++u) {
    add(fmt::format("unit {}", units[u].name), units[u].seconds);
  }
  return render_table(rows) + "\n";
}

std::string ratio_table(const StepReport& report) {
  std::vector<Row> rows = {{"sharded against", "speed", "lowest-highest", "each pair"}};
  for (const SpeedRatio& ratio : speed_ratios(report)) {
    rows.push_back({ratio.against, fmt::format("{:.3f} x", ratio.spread.median),
                    fmt::format("{:.3f}-{:.3f}", ratio.spread.low, ratio.spread.high),
                    fmt::format("{:.3f}", fmt::join(ratio.pairs, " "))});
  }
  return render_table(rows);
}

std::string rounds(const StepReport& report) {
  const std::size_t made = find(report, kPlain).runs.size();
  const auto wanted = static_cast<std::size_t>(report.options.pairs);
  if (made < wanted) return fmt::format("only {} of {} rounds", made, wanted);
  return made == 1 ? "1 round" : fmt::format("{} rounds", made);
}

std::string sizes(const StepShape& shape) {
  const std::string row = counted(shape) == std::string_view("tokens")
                              ? fmt::format("seq {}", shape.seq)
                              : fmt::format("images of {} x {}", shape.image, shape.image);
  return fmt::format("{}, batch {} a rank", row, shape.batch);
}

std::string heading(const StepReport& report) {
  const StepSpec& spec = report.options.spec;
  const Machine& machine = report.machine;
  const StepDetails* details = details_of(find(report, kPlain));
  return fmt::format(
      "Training step, {}, shape {}: {}, {}; {} x {} thread{}, {}, units {}, "
      "atoms {}\n"
      "{}, each contender once a round, {} steps each, the first one to warm up\n"
      "{}, {} of {} CPUs usable, load {:.2f} at the start; libtorch {}\n",
      spec.shape.model, report.options.shape_name, parameter_count(details->parameters),
      sizes(spec.shape), spec.ranks == 1 ? "1 rank" : fmt::format("{} ranks", spec.ranks),
      spec.threads, spec.threads == 1 ? "" : "s", spec.strategy, report.options.units.front(),
      report.options.atoms.front(), rounds(report), spec.steps, machine.cpu, machine.usable_cpus,
      machine.cpus, machine.load[0], details->torch);
}

std::string noise_warning(const StepReport& report) {
  constexpr double kQuiet = 0.05;
  double most = 0;
  for (const Measured& contender : report.measured) {
    for (const StepRun& run : contender.runs) most = std::max(most, run.others_share);
  }
  if (most <= kQuiet) return "";
  return fmt::format("The machine was not quiet: other processes took up to {:.0f} % of it.\n",
                     100 * most);
}

std::string failures(const StepReport& report) {
  std::string text;
  for (const Measured& contender : report.measured) {
    if (contender.failed_runs == 0) continue;
    text += fmt::format("{} of the runs of '{}' failed and had to be made again.\n",
                        contender.failed_runs, contender.name);
  }
  return text;
}

std::string described(const std::vector<Column>& columns) {
  std::string text;
  for (const Column& column : columns) {
    text += fmt::format("  {:<10} {}\n", column.heading, column.meaning);
  }
  return text;
}

}  // namespace

std::vector<SpeedRatio> speed_ratios(const StepReport& report) {
  const auto speeds = [](const Measured& contender) {
    return over_runs(contender, &StepResult::tokens_per_second);
  };
  const std::vector<double> sharded = speeds(find(report, kSharded));
  std::vector<SpeedRatio> result;
  for (const Measured& other : report.measured) {
    if (other.name == kSharded) continue;
    std::vector<double> pairs = ratios(sharded, speeds(other));
    const Spread all = spread(pairs);
    result.push_back({other.name, std::move(pairs), all});
  }
  return result;
}

std::optional<double> memory_ratio(const StepReport& report, const Measured& contender) {
  const Measured& plain = find(report, kPlain);
  if (!contender.memory || !plain.memory || plain.memory->above_base() <= 0) return std::nullopt;
  return static_cast<double>(contender.memory->above_base()) /
         static_cast<double>(plain.memory->above_base());
}

std::optional<double> unevenness(const Measured& contender) {
  const auto* owned = owned_by_rank(contender);
  if (owned == nullptr) return std::nullopt;
  const auto sum = static_cast<double>(std::reduce(owned->begin(), owned->end()));
  return static_cast<double>(std::ranges::max(*owned) * std::ssize(*owned)) / sum;
}

std::optional<double> exposed_share(const Measured& contender) {
  std::vector<double> shares;
  for (const StepRun& run : contender.runs) {
    const auto& details = run.result.details;
    if (!details || !details->counters) return std::nullopt;
    shares.push_back(details->counters->exposed_seconds / run.result.step_seconds);
  }
  return median(shares);
}

std::string report_text(const StepReport& report) {
  return fmt::format(
      "{}\n{}\n{}\n{}\n{}"
      "Plain and sharded training agree: losses and gradient norm differ by at most {:.1e}, "
      "relative.\n{}{}",
      heading(report), table(report, "speed", speed_columns()), ratio_table(report),
      table(report, "memory", memory_columns()), exposure_table(report), report.largest_difference,
      failures(report), noise_warning(report));
}

std::string step_columns_help() {
  return "Columns of the table of speed (times are medians over the measured steps of a run, then "
         "over runs):\n" +
         described(speed_columns()) +
         "\nRatios compare the two runs of each round, so that what slows the machine for a while\n"
         "slows both sides. Columns of the table of memory:\n" +
         described(memory_columns()) +
         "The last table says what was exposed in sharded training: most of any rank in all, and\n"
         "most of any rank in adding up gradients, which is work and not waiting; and of the last\n"
         "run the units that kept ranks longest, mean over ranks.\n";
}

}  // namespace fullshard::bench
