#include "planner/timeline.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "fullshard/base/check.h"

namespace fullshard::planner {
namespace {

std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

}  // namespace

void BufferCount::take(std::int64_t bytes) {
  Size& size = sizes_[bytes];
  size.most = std::max(size.most, ++size.now);
}

std::int64_t BufferCount::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [bytes, size] : sizes_) sum += bytes * size.most;
  return sum;
}

TimelinePlayer::TimelinePlayer(const UnitSet& set, std::span<const UnitCosts> costs, Rates rates)
    : set_(set),
      costs_(costs),
      rates_(rates),
      landed_(costs.size(), 0),
      resident_(costs.size(), false),
      gradients_(costs.size(), {.from = -1}) {}

Timeline TimelinePlayer::play(const schedule::Schedule& schedule) {
  FULLSHARD_CHECK_EQ(schedule.events.size(), set_.visits.size());
  for (std::size_t visit = 0; visit < set_.visits.size(); ++visit) {
    carry_out(schedule.events[visit]);
    compute(visit);
    reduce_completed(visit);
  }
  timeline_.reduction_waits = std::max(0.0, network_free_at_ - now_);
  timeline_.gather_buffers = gather_buffers_.bytes();
  timeline_.gradient_buffers = gradient_buffers();
  return timeline_;
}

void TimelinePlayer::carry_out(const schedule::Event& event) {
  for (const int unit : event.evict) {
    resident_[index(unit)] = false;
    if (costs_[index(unit)].gather > 0) gather_buffers_.give_back(costs_[index(unit)].bytes);
  }
  if (!resident_[index(event.touch.unit)]) start_gather(event.touch.unit);
  for (const schedule::Ahead& ahead : event.gather_ahead) start_gather(ahead.unit);
  wait_for(event.touch.unit);
}

void TimelinePlayer::start_gather(int unit) {
  const UnitCosts& costs = costs_[index(unit)];
  resident_[index(unit)] = true;
  if (!costs.is_gathered) return;
  timeline_.gather_waits += rates_.unit_overhead;
  now_ += rates_.unit_overhead;
  landed_[index(unit)] = now_;
  if (costs.gather == 0) return;
  gather_buffers_.take(costs.bytes);
  landed_[index(unit)] = occupy_network(costs.gather);
}

void TimelinePlayer::wait_for(int unit) {
  const double wait = std::max(0.0, landed_[index(unit)] - now_);
  timeline_.gather_waits += wait;
  now_ += wait;
}

void TimelinePlayer::compute(std::size_t at) {
  const Visit& visit = set_.visits[at];
  Held& gradient = gradients_[index(visit.unit)];
  if (visit.phase == schedule::Phase::kBackward && gradient.from < 0) gradient.from = now_;
  const double seconds = visit.flops * rates_.seconds_per_flop;
  timeline_.compute += seconds;
  if (visit.phase == schedule::Phase::kRecompute) timeline_.recompute += seconds;
  now_ += seconds;
}

void TimelinePlayer::reduce_completed(std::size_t visit) {
  for (std::size_t unit = costs_.size(); unit-- > 0;) {
    if (set_.completed_by[unit] != visit) continue;
    const UnitCosts& costs = costs_[unit];
    const double adding = costs.adding + (costs.adding > 0 ? rates_.unit_overhead : 0);
    timeline_.adding += adding;
    now_ += adding;
    if (costs.reduce == 0) continue;
    gradients_[unit].bytes = costs.bytes;
    gradients_[unit].until = occupy_network(costs.reduce);
  }
}

double TimelinePlayer::occupy_network(double seconds) {
  network_free_at_ = std::max(network_free_at_, now_) + seconds;
  return network_free_at_;
}

std::int64_t TimelinePlayer::gradient_buffers() const {
  std::vector<std::pair<double, std::int64_t>> changes;  // of what is given back first
  for (const Held& held : gradients_) {
    if (held.bytes == 0) continue;
    changes.emplace_back(held.from, held.bytes);
    changes.emplace_back(held.until, -held.bytes);
  }
  std::ranges::sort(changes);
  BufferCount buffers;
  for (const auto& [when, bytes] : changes) {
    if (bytes > 0) {
      buffers.take(bytes);
    } else {
      buffers.give_back(-bytes);
    }
  }
  return buffers.bytes();
}

}  // namespace fullshard::planner
