#pragma once

#include <rapidcheck.h>

#include <vector>

#include "fullshard/schedule/schedule.h"

// Random traces, sizes and options for the property tests. To be called inside a property.
namespace fullshard::schedule::arbitrary {

/// Uniform in [low, high) from the first case on; inRange by itself begins with tiny ranges.
template <typename T>
T between(T low, T high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

inline std::vector<std::int64_t> unit_bytes() {
  std::vector<std::int64_t> bytes(between<std::size_t>(1, 9));
  for (std::int64_t& size : bytes) size = between<std::int64_t>(0, 100);
  return bytes;
}

inline Phase phase() {
  return *rc::gen::element(Phase::kForward, Phase::kBackward, Phase::kRecompute);
}

/// Touches in no sensible order: worse than any model.
inline Trace wild_trace(int units) {
  Trace trace;
  for (auto left = between(0, 40); left > 0; --left) trace.add({between(0, units), phase()});
  return trace;
}

/// A model that runs units in some order and back, each way with detours.
inline Trace model_trace(int units) {
  std::vector<int> path;
  for (auto left = between(1, 12); left > 0; --left) path.push_back(between(0, units));
  Trace trace;
  for (const int unit : path) trace.add({unit, Phase::kForward});
  for (auto unit = path.rbegin(); unit != path.rend(); ++unit) {
    if (between(0, 8) != 0) trace.add({*unit, Phase::kBackward});
  }
  return trace;
}

inline Trace trace(int units) {
  return between(0, 2) == 0 ? wild_trace(units) : model_trace(units);
}

inline std::vector<bool> kept(std::size_t units) {
  std::vector<bool> kept;
  if (between(0, 2) == 0) return kept;
  for (std::size_t unit = 0; unit < units; ++unit) kept.push_back(between(0, 3) == 0);
  return kept;
}

/// A limit that admits every unit alone, or none.
inline std::int64_t limit(const std::vector<std::int64_t>& unit_bytes) {
  if (between(0, 3) == 0) return 0;
  std::int64_t largest = 1;
  std::int64_t total = 0;
  for (const std::int64_t bytes : unit_bytes) {
    largest = std::max(largest, bytes);
    total += bytes;
  }
  return between(largest, std::max(largest, total) + 1);
}

inline ScheduleOptions options(const std::vector<std::int64_t>& unit_bytes) {
  return {.keep_for_backward = kept(unit_bytes.size()),
          .max_unsharded_bytes = limit(unit_bytes),
          .keep_distance = between(0, 5),
          .keep_gathered = kept(unit_bytes.size()),
          .forward_prefetch = between(0, 4),
          .backward_prefetch = between(0, 4),
          .limit_all_gathers = between(0, 4) != 0,
          .gather_bucket_bytes = between(0, 2) == 0 ? 0 : between<std::int64_t>(0, 300)};
}

}  // namespace fullshard::schedule::arbitrary
