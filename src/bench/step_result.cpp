#include "fullshard/bench/step_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fullshard/base/error.h"

namespace fullshard::bench {
namespace {

using Json = nlohmann::json;

Json json_of(const StepCounters& counters) {
  Json units = Json::array();
  for (const UnitExposure& unit : counters.units) {
    units.push_back({{"name", unit.name}, {"exposed_s", unit.seconds}});
  }
  return {{"exposed_s", counters.exposed_seconds},
          {"reduction_s", counters.reduction_seconds},
          {"owned_bytes", counters.owned_bytes},
          {"units", std::move(units)},
          {"peak_unsharded_bytes", counters.peak_unsharded_bytes},
          {"peak_unreduced_gradient_bytes", counters.peak_unreduced_gradient_bytes}};
}

StepCounters counters_of(const Json& json) {
  std::vector<UnitExposure> units;
  for (const Json& unit : json.at("units")) {
    units.push_back({.name = unit.at("name"), .seconds = unit.at("exposed_s")});
  }
  return {.exposed_seconds = json.at("exposed_s"),
          .reduction_seconds = json.at("reduction_s"),
          .peak_unsharded_bytes = json.at("peak_unsharded_bytes"),
          .peak_unreduced_gradient_bytes = json.at("peak_unreduced_gradient_bytes"),
          .owned_bytes = json.at("owned_bytes"),
          .units = std::move(units)};
}

Json json_of(const StepDetails& details) {
  Json json = {{"losses", details.losses},
               {"steps_s", details.step_seconds},
               {"grad_norm", details.grad_norm},
               {"parameters", details.parameters},
               {"torch", details.torch}};
  if (details.counters) json["counters"] = json_of(*details.counters);
  return json;
}

StepDetails details_of(const Json& json) {
  StepDetails details{.losses = json.at("losses"),
                      .step_seconds = json.at("steps_s"),
                      .grad_norm = json.at("grad_norm"),
                      .parameters = json.at("parameters"),
                      .torch = json.at("torch"),
                      .counters = std::nullopt};
  if (json.contains("counters")) details.counters = counters_of(json.at("counters"));
  return details;
}

StepResult result_of(const Json& json) {
  StepResult result{.step_seconds = json.at("step_s"),
                    .tokens_per_second = json.at("tok_s"),
                    .loss = json.at("loss"),
                    .forward_seconds = json.value("fwd", 0.0),
                    .backward_seconds = json.value("bwd", 0.0),
                    .optimizer_seconds = json.value("opt", 0.0),
                    .details = std::nullopt};
  if (json.contains("details")) result.details = details_of(json.at("details"));
  return result;
}

/// The last line that holds a result, null when there is none.
Json last_result(std::string_view output) {
  while (!output.empty()) {
    const std::size_t before = output.find_last_of('\n', output.size() - 1);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    Json json = Json::parse(output.substr(begin), nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("tok_s")) return json;
    output = output.substr(0, begin == 0 ? 0 : before);
  }
  return nullptr;
}

double relative_difference(double expected, double found) {
  return std::abs(found - expected) / std::max(std::abs(expected), 1e-30);
}

[[noreturn]] void fail(base::ErrorCode code, const std::string& message) {
  throw base::Error(code, message);
}

/// Also when the difference is no number.
double require_close(const std::string& what, double plain, double sharded, double tolerance) {
  const double difference = relative_difference(plain, sharded);
  if (difference <= tolerance) return difference;
  fail(base::ErrorCode::kInternal,
       fmt::format("sharded training does not equal plain training: {} is {} plain and {} sharded, "
                   "a relative difference of {:.1e} where {:.0e} is allowed; nothing is reported",
                   what, plain, sharded, difference, tolerance));
}

}  // namespace

std::string to_json(const StepResult& result) {
  Json json = {{"step_s", result.step_seconds},
               {"tok_s", result.tokens_per_second},
               {"loss", result.loss},
               {"fwd", result.forward_seconds},
               {"bwd", result.backward_seconds},
               {"opt", result.optimizer_seconds}};
  if (result.details) json["details"] = json_of(*result.details);
  return json.dump();
}

StepResult parse_step_result(std::string_view output, std::string_view source) {
  const Json json = last_result(output);
  if (json.is_null()) {
    fail(base::ErrorCode::kSystem,
         fmt::format("{} has printed no line of JSON with tok_s, step_s and loss", source));
  }
  try {
    StepResult result = result_of(json);
    if (result.tokens_per_second > 0 && result.step_seconds > 0) return result;
  } catch (const Json::exception& error) {
    fail(base::ErrorCode::kSystem, fmt::format("{} has printed a line of JSON with tok_s that "
                                               "cannot be used: {}",
                                               source, error.what()));
  }
  fail(base::ErrorCode::kSystem,
       fmt::format("{} has printed tok_s {} and step_s {}; both must be above 0", source,
                   json.at("tok_s").dump(), json.at("step_s").dump()));
}

double verify_same_training(const StepDetails& plain, const StepDetails& sharded,
                            double tolerance) {
  if (plain.losses.size() != sharded.losses.size()) {
    fail(base::ErrorCode::kInternal, fmt::format("{} plain and {} sharded steps cannot be compared",
                                                 plain.losses.size(), sharded.losses.size()));
  }
  double largest =
      require_close("the gradient's norm in step 1", plain.grad_norm, sharded.grad_norm, tolerance);
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    const std::string what = fmt::format("the loss in step {}", i + 1);
    largest = std::max(largest, require_close(what, plain.losses[i], sharded.losses[i], tolerance));
  }
  return largest;
}

}  // namespace fullshard::bench
