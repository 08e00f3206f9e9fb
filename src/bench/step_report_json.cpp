#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/contender.h"
#include "bench/step_report.h"

namespace fullshard::bench {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Spread& values) {
  return {{"median", values.median}, {"low", values.low}, {"high", values.high}};
}

Json json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cpus", machine.cpus},
          {"usable_cpus", machine.usable_cpus},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel},
          {"transparent_huge_pages", machine.huge_pages},
          {"load_average_at_start", machine.load}};
}

Json json_of(const StepBenchOptions& options) {
  return {{"shape_name", options.shape_name},
          {"spec", Json::parse(to_json(sharded_specs(options).front().second))},
          {"units", options.units},
          {"atoms", options.atoms},
          {"pairs", options.pairs},
          {"peer", options.peer},
          {"peer_python", options.peer_python}};
}

Json json_of(const StepRun& run) {
  Json json = Json::parse(to_json(run.result));
  json["wall_s"] = run.wall_seconds;
  json["others_share"] = run.others_share;
  return json;
}

Json memory_json(const StepReport& report, const Measured& contender) {
  const MemoryPeak& memory = *contender.memory;
  Json json = {{"above_base_bytes", memory.above_base()},
               {"base_bytes", memory.base_bytes},
               {"peak_bytes", memory.peak_bytes},
               {"samples", memory.samples}};
  if (const auto ratio = memory_ratio(report, contender)) json["of_plain"] = *ratio;
  return json;
}

Json json_of(const StepReport& report, const Measured& contender) {
  std::vector<double> speeds;
  Json runs = Json::array();
  for (const StepRun& run : contender.runs) {
    speeds.push_back(run.result.tokens_per_second);
    runs.push_back(json_of(run));
  }
  Json json = {{"name", contender.name}, {"tokens_per_second", json_of(spread(speeds))}};
  if (const auto share = exposed_share(contender)) json["exposed_share"] = *share;
  if (const auto ratio = unevenness(contender)) json["owned_most_of_mean"] = *ratio;
  json["failed_runs"] = contender.failed_runs;
  if (contender.memory) json["memory"] = memory_json(report, contender);
  json["runs"] = std::move(runs);
  return json;
}

}  // namespace

std::string report_json(const StepReport& report) {
  Json json = {{"command_line", report.options.command_line},
               {"machine", json_of(report.machine)},
               {"options", json_of(report.options)},
               {"largest_relative_difference", report.largest_difference}};
  for (const SpeedRatio& ratio : speed_ratios(report)) {
    Json entry = json_of(ratio.spread);
    entry["pairs"] = ratio.pairs;
    json["sharded_speed_against"][ratio.against] = std::move(entry);
  }
  for (const Measured& contender : report.measured) {
    json["contenders"].push_back(json_of(report, contender));
  }
  return json.dump(2) + "\n";
}

}  // namespace fullshard::bench
