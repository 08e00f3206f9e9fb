#include "fullshard/residency/unit_pager.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::residency {
namespace {

// A unit that does not leave by schedule does not count against the schedule's limit.
std::vector<std::int64_t> pageable_bytes(const std::vector<PagedUnit>& units) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(units.size());
  for (const PagedUnit& unit : units)
    bytes.push_back(unit.stay == Stay::kBySchedule ? unit.bytes : 0);

  return bytes;
}

}  // namespace

UnitPager::UnitPager(std::vector<PagedUnit> units, const schedule::ScheduleOptions& options,
                     std::function<bool()> in_backward)
    : units_(std::move(units)),
      states_(units_.size()),
      follower_(pageable_bytes(units_), options),
      in_backward_(std::move(in_backward)) {
  for (const PagedUnit& unit : units_) {
    for (const PagedParameter& parameter : unit.parameters) parameter.storage->attach(this);
    if (unit.stay == Stay::kNeverAway) map(unit, unit.source->gather());
  }
}

UnitPager::~UnitPager() {
  for (const PagedUnit& unit : units_) {
    for (const PagedParameter& parameter : unit.parameters) parameter.storage->orphan();
  }
}

void UnitPager::on_access(PagedStorage& storage, Access access, std::string_view op) {
  if (pinned_) return;
  if (access == Access::kWrite) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} writes to parameter '{}', which is sharded. An optimizer must be built on "
                    "sharded.parameters(), not on module->parameters(); to edit values, open "
                    "sharded.unsharded(UnshardedMode::kWrite)",
                    op, storage.name()));
  }
  const int unit = storage.index();
  const bool backward = in_backward_();
  const Stay stay = units_[static_cast<std::size_t>(unit)].stay;
  if (stay == Stay::kNeverAway) return;
  if (stay == Stay::kForGood) {
    touch_kept(unit);
  } else if (backward) {
    touch_in_step(unit, schedule::Phase::kBackward);
  } else if (at::GradMode::is_enabled()) {
    touch_in_step(unit, schedule::Phase::kForward);
  } else {
    touch_without_gradients(unit);
  }
}

void UnitPager::touch_kept(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  if (states_[index].resident && units_[index].source->is_current()) return;
  evict(unit);
  gather(unit);
}

void UnitPager::touch_in_step(int unit, schedule::Phase phase) {
  if (inference_unit_ != -1) close_inference();
  step_open_ = true;
  const schedule::Decision decision = follower_.on_touch(unit, phase);
  for (const int other : decision.evict) evict(other);
  if (!states_[static_cast<std::size_t>(unit)].resident) gather(unit);
  for (const int other : decision.gather_ahead) gather(other);
}

void UnitPager::touch_without_gradients(int unit) {
  if (unit == inference_unit_) return;
  if (inference_unit_ != -1) close_inference();
  if (step_open_) end_step();
  gather(unit);
  inference_unit_ = unit;
}

void UnitPager::close_inference() {
  evict(inference_unit_);
  inference_unit_ = -1;
}

void UnitPager::end_step() {
  if (inference_unit_ != -1) close_inference();
  step_open_ = false;
  for (const int unit : follower_.end_step()) evict(unit);
}

void UnitPager::release() {
  end_step();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) evict(static_cast<int>(unit));
}

void UnitPager::pin(std::span<std::byte* const> memories) {
  FULLSHARD_CHECK_EQ(memories.size(), units_.size());
  release();
  for (std::size_t i = 0; i < units_.size(); ++i) map(units_[i], memories[i]);
  pinned_ = true;
}

void UnitPager::unpin() {
  pinned_ = false;
  for (const PagedUnit& unit : units_) {
    if (unit.stay == Stay::kNeverAway) {
      map(unit, unit.source->gather());
    } else {
      for (const PagedParameter& parameter : unit.parameters) parameter.storage->unmap();
    }
  }
}

void UnitPager::with_resident(std::size_t unit, const std::function<void(std::byte*)>& body) {
  const bool was_resident = states_[unit].resident || units_[unit].stay == Stay::kNeverAway;
  if (was_resident) {
    body(units_[unit].source->gather());
    return;
  }
  gather(static_cast<int>(unit));
  try {
    body(units_[unit].source->gather());
  } catch (...) {
    evict(static_cast<int>(unit));
    throw;
  }
  evict(static_cast<int>(unit));
}

void UnitPager::gather(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  map(units_[index], units_[index].source->gather());
  states_[index].resident = true;
  ++states_[index].gathers;
  live_bytes_ += units_[index].bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void UnitPager::evict(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  if (!states_[index].resident) return;
  for (const PagedParameter& parameter : units_[index].parameters) parameter.storage->unmap();
  units_[index].source->release();
  states_[index].resident = false;
  live_bytes_ -= units_[index].bytes;
}

void UnitPager::map(const PagedUnit& unit, std::byte* memory) {
  for (const PagedParameter& parameter : unit.parameters) {
    parameter.storage->map(memory + parameter.offset);
  }
}

}  // namespace fullshard::residency
