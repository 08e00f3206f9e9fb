#include "fullshard/planner/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/planner/model.h"

namespace fullshard::planner {
namespace {

using Json = nlohmann::json;

constexpr double kBytesOfUpdate = 28;  // fp32: parameter, gradient, two moments; all but one back

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_of(const Json& runs, const char* key) {
  std::vector<double> values;
  for (const Json& run : runs) values.push_back(run.at(key).get<double>());
  return median(std::move(values));
}

ModelShape shape_of(const Json& shape) {
  return {.layers = shape.at("layers"),
          .dim = shape.at("dim"),
          .heads = shape.at("heads"),
          .vocab = shape.at("vocab"),
          .seq = shape.at("seq")};
}

double median_exposed(const Json& runs) {
  std::vector<double> values;
  for (const Json& run : runs) {
    values.push_back(run.at("details").at("counters").at("exposed_s").get<double>());
  }
  return median(std::move(values));
}

// Operations are counted as a GPT's that computes everything once.
void check_countable(const Json& spec) {
  if (spec.at("shape").value("model", "gpt") == "gpt" && spec.value("recompute", 0) == 0) return;
  throw Json::other_error::create(501, "rates are taken from a GPT without recomputation", &spec);
}

MeasuredRates rates_of(const Json& report) {
  const Json& spec = report.at("options").at("spec");
  check_countable(spec);
  const ModelShape shape = shape_of(spec.at("shape"));
  const Json& contenders = report.at("contenders");
  const auto sharded = std::ranges::find_if(
      contenders, [](const Json& contender) { return contender.at("name") == "sharded"; });
  if (sharded == contenders.end() || sharded->at("runs").empty()) {
    throw Json::other_error::create(501, "no run of sharded training", &contenders);
  }
  const Json& runs = sharded->at("runs");
  const auto ranks = spec.at("ranks").get<double>();
  const double tokens =
      ranks * static_cast<double>(shape.seq) * spec.at("shape").at("batch").get<double>();
  const double threads = ranks * spec.at("threads").get<double>();
  const double computing = median_of(runs, "fwd") + median_of(runs, "bwd") - median_exposed(runs);
  return {.flops_per_thread = flops_per_token(shape) * tokens / computing / threads,
          .host_bandwidth =
              kBytesOfUpdate * static_cast<double>(parameter_count(shape)) / median_of(runs, "opt"),
          .machine = report.at("machine").at("cpu"),
          .others_share = median_of(runs, "others_share")};
}

}  // namespace

MeasuredRates measured_rates(std::string_view json, std::string_view source) {
  try {
    return rates_of(Json::parse(json));
  } catch (const Json::exception& error) {
    throw base::Error(
        base::ErrorCode::kConfiguration,
        fmt::format("{}: not what 'fullshard bench step --json' writes: {}", source, error.what()));
  }
}

MeasuredRates read_measured_rates(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw base::Error(base::ErrorCode::kFile, fmt::format("cannot read {}", path));
  return measured_rates(text, path);
}

}  // namespace fullshard::planner
