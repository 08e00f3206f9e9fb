#include "fullshard/bench/collectives_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fullshard/base/error.h"

namespace fullshard::bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectivesSpec, ranks, backend, operations, sizes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveTime, operation, bytes, seconds)

namespace {

constexpr int kMostRanks = 1024;
constexpr std::int64_t kLargest = std::int64_t{1} << 34;

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kUsage, message);
}

}  // namespace

std::vector<std::string> collective_operations() {
  return {"copy",       "barrier",    "gather_in_place", "reduce_in_place",
          "all_gather", "all_reduce", "reduce_scatter",  "broadcast"};
}

bool has_operation(std::string_view backend, std::string_view operation) {
  return backend == "shm" || (operation != "gather_in_place" && operation != "reduce_in_place");
}

bool has_size(std::string_view operation) {
  return operation != "barrier" && operation != "gather_in_place";
}

std::int64_t least_moved_bytes(std::string_view operation, std::int64_t bytes, int ranks) {
  if (operation == "copy") return 2 * bytes;
  // Of every rank's buffer it reads its part, and it writes that once.
  if (operation == "reduce_in_place" || operation == "reduce_scatter") {
    return (ranks + 1) * bytes / ranks;
  }
  return 0;
}

void validate(const CollectivesSpec& spec) {
  if (spec.ranks < 2 || spec.ranks > kMostRanks) {
    reject(
        fmt::format("--ranks: found {}; expected an integer from 2 to {}", spec.ranks, kMostRanks));
  }
  const std::vector<std::string> known = collective_operations();
  for (const std::string& operation : spec.operations) {
    if (std::ranges::find(known, operation) != known.end()) continue;
    reject(fmt::format("--operations: found \"{}\"; expected some of {}", operation,
                       fmt::join(known, ", ")));
  }
  if (spec.sizes.empty()) reject("--sizes: found none; expected numbers of bytes");
  for (const std::int64_t size : spec.sizes) {
    if (size >= 1 && size <= kLargest) continue;
    reject(
        fmt::format("--sizes: found {}; expected numbers of bytes from 1 to {}", size, kLargest));
  }
}

std::string to_json(const CollectivesSpec& spec) { return nlohmann::json(spec).dump(); }

CollectivesSpec parse_collectives_spec(std::string_view json) {
  try {
    return nlohmann::json::parse(json).get<CollectivesSpec>();
  } catch (const nlohmann::json::exception& error) {
    throw base::Error(base::ErrorCode::kConfiguration,
                      fmt::format("cannot read what to measure from '{}': {}", json, error.what()));
  }
}

std::string to_json(const std::vector<CollectiveTime>& times) {
  return nlohmann::json{{"collectives", times}}.dump();
}

std::vector<CollectiveTime> parse_collective_times(std::string_view output,
                                                   std::string_view source) {
  while (!output.empty()) {
    const std::size_t end = output.find_last_not_of('\n') + 1;
    const std::size_t begin = output.substr(0, end).find_last_of('\n') + 1;
    const auto line = nlohmann::json::parse(output.substr(begin, end - begin), nullptr,
                                            /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("collectives")) {
      return line["collectives"].get<std::vector<CollectiveTime>>();
    }
    output = output.substr(0, begin == 0 ? 0 : begin - 1);
  }
  throw base::Error(base::ErrorCode::kSystem, fmt::format("{} printed no times", source));
}

}  // namespace fullshard::bench
