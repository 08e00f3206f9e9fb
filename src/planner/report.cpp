#include "fullshard/planner/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "fullshard/base/text.h"
#include "planner/memory.h"

namespace fullshard::planner {
namespace {

using Row = std::vector<std::string>;

std::string size_text(std::int64_t bytes) { return base::format_bytes(bytes); }

std::string seconds_text(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.3f} s", seconds);
}

// The first column to the left, the others to the right.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    text += fmt::format("  {:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += '\n';
  }
  return text;
}

std::string plural(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string model_line(const ModelShape& shape) {
  const bool decodes = shape.kind == ModelKind::kDecoder;
  return fmt::format(
      "model     {}: {}, {} blocks of width {}, {} heads, {} {}{}, sequences of {}; {} "
      "parameters\n",
      shape.name, decodes ? "decoder" : "encoder", shape.layers, shape.dim, shape.heads,
      decodes ? "vocabulary" : "classes", shape.vocab,
      decodes && shape.tie_embeddings ? " (tied)" : "", shape.seq,
      fmt::group_digits(parameter_count(shape)));
}

std::string step_line(const Job& job) {
  return fmt::format(
      "step      {} x {} x {} = {} tokens; {}\n", plural(job.batch, "sequence"),
      plural(job.micro_batches, "micro-batch"), plural(job.machines.world(), "rank"),
      fmt::group_digits(job.tokens_per_step()),
      job.precision == Precision::kBFloat16 ? "bf16 with fp32 masters" : to_string(job.precision));
}

std::string machine_lines(const SettledJob& settled) {
  const Machines& machines = settled.job.machines;
  std::string text =
      fmt::format("machines  {} of {} with {} each; {} a host\n", plural(machines.hosts, "host"),
                  plural(machines.ranks_per_host, "rank"),
                  plural(machines.threads_per_rank, "thread"), size_text(machines.memory_per_host));
  text += fmt::format("rates     {:.4g} GFLOP/s a rank, {:.4g} GB/s of memory a host",
                      machines.flops / 1e9, machines.host_bandwidth / 1e9);
  if (machines.hosts > 1) {
    text += fmt::format(", {:.4g} GB/s and {:.4g} us between hosts",
                        machines.network_bandwidth / 1e9, machines.network_latency * 1e6);
  }
  if (!settled.rates_from.empty()) text += "; measured: " + settled.rates_from;
  text += '\n';
  if (!settled.assumed.empty()) {
    text += fmt::format("assumed   {}\n", fmt::join(settled.assumed, ", "));
  }
  return text;
}

Row way_row(const Job& job, const Assessment& way) {
  const Candidate& candidate = way.candidate;
  return {std::string(to_string(candidate.strategy)),
          to_string(candidate.units),
          std::string(to_string(candidate.cuts)),
          candidate.recompute ? "yes" : "no",
          fmt::format("{}", candidate.prefetch),
          size_text(way.memory.rank.total()),
          size_text(way.memory.host.total()),
          way.fits ? "yes" : "no",
          seconds_text(way.step.total()),
          fmt::format("{:.0f}", way.tokens_per_second(job)),
          fmt::format("{:.1f} %", 100 * way.step.exposed() / way.step.total())};
}

std::string ways_table(const Plan& plan, int rows) {
  std::vector<Row> lines = {{"strategy", "units of", "cuts", "recompute", "ahead", "a rank",
                             "a host", "fits", "a step", "tokens/s", "exposed"}};
  for (const Assessment& way : plan.of_strategies) {
    if (static_cast<int>(lines.size()) <= rows) lines.push_back(way_row(plan.job, way));
  }
  return fmt::format("\nThe best of each strategy{}:\n{}",
                     plan.fits() ? "; the first is chosen" : "; none fits", table(lines));
}

std::string configured_text(const SettledJob& settled) {
  if (!settled.configured) return "";
  const Assessment way = assess(settled.job, *settled.configured);
  return fmt::format("\nAs configured now:\n{}", table({way_row(settled.job, way)}));
}

std::string reasons_text(const Plan& plan) {
  if (plan.reasons.empty()) return "";
  return fmt::format("\nWhy the first:\n  {}\n", fmt::join(plan.reasons, "\n  "));
}

std::string memory_table(const Assessment& way) {
  const auto& [moment, host, rank] = way.memory;
  std::vector<Row> lines = {{"", "a rank", "a host"}};
  const auto add = [&](const char* name, std::int64_t of_rank, std::int64_t of_host) {
    if (of_host > 0) lines.push_back({name, size_text(of_rank), size_text(of_host)});
  };
  add("parameters", rank.parameters, host.parameters);
  add("optimizer state", rank.optimizer, host.optimizer);
  add("gradients, reduced", rank.gradients, host.gradients);
  add("gradients to reduce", rank.unreduced, host.unreduced);
  add("gradients of the tied table", rank.tied, host.tied);
  add("activations", rank.activations, host.activations);
  add("units gathered between hosts", rank.gathered, host.gathered);
  add("models before sharding", rank.building, host.building);
  add("libraries", rank.libraries, host.libraries);
  add("together", rank.total(), host.total());
  return fmt::format("\nMemory of the first, at its worst, when {}; gathered at once {}:\n{}",
                     moment, size_text(way.peak_unsharded_bytes), table(lines));
}

std::string step_table(const Assessment& way) {
  const StepEstimate& step = way.step;
  std::vector<Row> lines;
  const auto add = [&](const char* name, double seconds) {
    if (seconds == 0) return;
    lines.push_back(
        {name, seconds_text(seconds), fmt::format("{:.1f} %", 100 * seconds / step.total())});
  };
  add("computing", step.compute);
  add("  of it blocks again", step.recompute);
  add("gathering and waiting for it", step.gather_waits);
  add("adding up gradients", step.adding);
  add("waiting for gradients", step.reduction_waits);
  add("optimizer", step.optimizer);
  add("exchanging updates", step.update_waits);
  add("together", step.total());
  const std::string sent =
      way.bytes_between_hosts == 0
          ? ""
          : fmt::format("; a host sends {}", size_text(way.bytes_between_hosts));
  return fmt::format("\nTime of its step{}:\n{}", sent, table(lines));
}

std::string granularity_table(const Plan& plan) {
  std::vector<Row> lines = {
      {"units of", "units", "largest", "gathered at once", "a host", "a step", "exposed"}};
  for (const Assessment& way : plan.granularities()) {
    lines.push_back({to_string(way.candidate.units), fmt::format("{}", way.units),
                     size_text(way.largest_unit_bytes), size_text(way.peak_unsharded_bytes),
                     size_text(way.memory.host.total()), seconds_text(way.step.total()),
                     fmt::format("{:.2f} %", 100 * way.step.exposed() / way.step.total())});
  }
  return "\nIts granularity:\n" + table(lines);
}

std::string heads_text(const Plan& plan) {
  const Assessment& divided = plan.with_heads;
  const int ranks = shard_ranks(plan.job.machines, plan.best().candidate.strategy);
  std::string text = fmt::format(
      "\nHeads kept whole, {} of {} in a group, and MLPs cut between hidden features, over {}: the "
      "largest share is {:.2f} of the mean, a host needs {}, a step takes {}.\n",
      plan.heads.heads_per_group, plan.job.model.heads, plural(ranks, "rank"),
      divided.largest_share, size_text(divided.memory.host.total()),
      seconds_text(divided.step.total()));
  for (const AtomRule& rule : plan.heads.rules) text += "  " + cpp_rule(rule) + "\n";
  return text;
}

std::string indented(const std::string& text) {
  std::string out = "  ";
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] == '\n' && i + 1 < text.size()) out += "  ";
  }
  return out;
}

std::string how_to_text(const Plan& plan) {
  const Candidate& candidate = plan.best().candidate;
  std::string program = "\nIn a program:\n" + indented(cpp_options(plan.job, candidate));
  if (plan.job.model.kind == ModelKind::kEncoder) return program;
  const TrainSettings settings = train_settings(plan.job, candidate);
  std::string text = "\nTo train so:\n" + indented(train_command(plan.job, settings)) + "\n";
  if (!settings.missing.empty()) {
    text += fmt::format("which leaves out: {}.\n", fmt::join(settings.missing, "; "));
  }
  return text + program;
}

}  // namespace

std::string to_text(const SettledJob& settled, const Plan& plan, int rows) {
  std::string text = model_line(plan.job.model) + step_line(plan.job) + machine_lines(settled) +
                     ways_table(plan, rows) + configured_text(settled) + reasons_text(plan) +
                     memory_table(plan.best()) + step_table(plan.best()) + granularity_table(plan) +
                     heads_text(plan);
  if (plan.fits()) text += how_to_text(plan);
  return text;
}

}  // namespace fullshard::planner
