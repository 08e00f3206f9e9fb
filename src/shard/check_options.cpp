#include "shard/check_options.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

#include "fullshard/base/error.h"

namespace fullshard::shard {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw base::Error(base::ErrorCode::kInvalidArgument, message);
}

void check_strategy(ShardingStrategy strategy, const comm::Mesh& mesh, std::string_view where) {
  if (strategy != ShardingStrategy::HYBRID_SHARD || mesh.replicate->size() > 1) return;
  refuse(
      fmt::format("{}HYBRID_SHARD needs a mesh with replicas; pass "
                  "world.mesh({{.replicate = N}}) with N > 1, or choose FULL_SHARD",
                  where));
}

void check_strategies(const FullyShardOptions& options, const comm::Mesh& mesh) {
  check_strategy(options.sharding_strategy, mesh, "");
  for (const ParameterRule& rule : options.rules) {
    if (!rule.strategy) continue;
    check_strategy(*rule.strategy, mesh, fmt::format("the rule for '{}': ", rule.pattern));
  }
}

void check_factors(const FullyShardOptions& options) {
  const double divide = options.gradient_divide_factor;
  if (!std::isfinite(divide) || divide < 0) {
    refuse(
        fmt::format("gradient_divide_factor is {}; it has to be above 0, or 0 for the number of "
                    "ranks",
                    divide));
  }
  const double predivide = options.gradient_predivide_factor;
  if (!std::isfinite(predivide) || predivide <= 0) {
    refuse(fmt::format("gradient_predivide_factor is {}; it has to be above 0", predivide));
  }
}

void check_floating(const char* field, const std::optional<at::ScalarType>& dtype) {
  const bool is_known =
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (!dtype || is_known) return;
  refuse(
      fmt::format("mixed_precision.{} is {}; it has to be a floating-point type of 16, 32 or 64 "
                  "bits, for instance "
                  "kBFloat16",
                  field, c10::toString(*dtype)));
}

void check_precision(const MixedPrecision& mixed) {
  check_floating("param_dtype", mixed.param_dtype);
  check_floating("reduce_dtype", mixed.reduce_dtype);
  check_floating("buffer_dtype", mixed.buffer_dtype);
}

}  // namespace

void check_options(const FullyShardOptions& options, const comm::Mesh& mesh) {
  check_strategies(options, mesh);
  check_factors(options);
  check_precision(options.mixed_precision);
  const int smaller = options.reshard_after_forward;
  if (smaller < 0 || (smaller > 0 && mesh.shard->size() % smaller != 0)) {
    refuse(
        fmt::format("reshard_after_forward is {}, which does not divide the {} ranks of the "
                    "shard group; choose one of its divisors, or 0",
                    smaller, mesh.shard->size()));
  }
  if (options.reduce_bucket_bytes < 0) {
    refuse(fmt::format("reduce_bucket_bytes is {}; it has to be 0 or above",
                       options.reduce_bucket_bytes));
  }
}

}  // namespace fullshard::shard
