#include "fullshard/schedule/follower.h"

#include <algorithm>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"
#include "schedule/limit.h"

namespace fullshard::schedule {
namespace {

/// A forward that comes again and again is at last a step of its own: after this many events, and
/// not before each unit can have been in this many forwards.
constexpr std::size_t kLongTrace = 1024;
constexpr std::size_t kForwards = 16;

std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

/// What a plan has resident after its first `events` events.
std::vector<bool> residents_after(const Schedule& plan, std::size_t events) {
  std::vector<bool> resident(index(plan.units));
  for (std::size_t at = 0; at < events; ++at) {
    const Event& event = plan.events[at];
    for (const int unit : event.evict) resident[index(unit)] = false;
    resident[index(event.touch.unit)] = true;
    for (const Ahead& ahead : event.gather_ahead) resident[index(ahead.unit)] = true;
  }
  return resident;
}

}  // namespace

Follower::Follower(std::vector<std::int64_t> unit_bytes, ScheduleOptions options)
    : unit_bytes_(std::move(unit_bytes)),
      options_(std::move(options)),
      resident_(unit_bytes_.size()),
      last_use_(unit_bytes_.size()) {
  validate(unit_bytes_, options_);
  for (std::size_t unit = 0; unit < unit_bytes_.size(); ++unit) {
    check_fits(static_cast<int>(unit), unit_bytes_[unit], options_);
  }
  evicted_.reserve(unit_bytes_.size());
  ahead_.reserve(unit_bytes_.size());
  staying_.reserve(unit_bytes_.size());
}

bool Follower::begins_anew(Touch touch) const {
  if (!in_step_ || had_backward_ || touch.phase != Phase::kForward || touch.with > 0) return false;
  if (last_.continues(touch) || !first_of_step().continues(touch)) return false;
  if (!following()) return trace_.size() >= std::max(kLongTrace, kForwards * unit_bytes_.size());
  const Schedule* forward = plan(Kind::kForwardOnly);
  return forward != nullptr && done_ == forward->events.size() && fits_so_far(*forward) &&
         !expects(*followed(), touch);
}

bool Follower::expects(const Schedule& candidate, Touch touch) const {
  return done_ < candidate.events.size() && candidate.events[done_].touch == touch;
}

Touch Follower::first_of_step() const {
  return following() ? followed()->events.front().touch : trace_.events().front();
}

Decision Follower::on_touch(Touch touch) {
  if (in_step_ && last_.continues(touch)) return {};
  check_known(touch.unit, unit_bytes_.size());
  if (!in_step_) start_step();
  evicted_.clear();
  ahead_.clear();
  last_ = touch;
  last_use_[index(touch.unit)] = ++clock_;
  had_backward_ = had_backward_ || touch.phase != Phase::kForward;
  const bool had_plan = following();
  const bool on_plan = had_plan && stay_on_a_plan(touch);
  if (on_plan) {
    follow();
  } else {
    if (had_plan) leave_plan();
    go_by_demand(touch);
  }
  return {had_plan && !on_plan, evicted_, ahead_};
}

void Follower::on_staying(Phase phase, std::span<const Ahead> gathered) {
  had_backward_ = had_backward_ || phase != Phase::kForward;
  if (gathered.empty()) return;
  const std::size_t after = !in_step_ ? 0 : following() ? done_ : trace_.size();
  for (const Ahead& unit : gathered) staying_.push_back({after, unit.unit, unit.joins});
}

std::span<const int> Follower::end_step() {
  evicted_.clear();
  for (std::size_t unit = 0; unit < resident_.size(); ++unit) {
    if (resident_[unit]) evict(static_cast<int>(unit));
  }
  if (following() && !ended_as_planned()) leave_plan();
  if (in_step_ && !following()) remember_trace();
  remember_staying();
  in_step_ = false;
  had_backward_ = false;
  followed_.reset();
  return evicted_;
}

Follower::Kind Follower::other(Kind kind) {
  return kind == Kind::kTraining ? Kind::kForwardOnly : Kind::kTraining;
}

Follower::Kind Follower::kind_of_step() const {
  return had_backward_ ? Kind::kTraining : Kind::kForwardOnly;
}

const Schedule* Follower::plan(Kind kind) const {
  const std::optional<Schedule>& found = plans_[static_cast<std::size_t>(kind)];
  return found ? &*found : nullptr;
}

void Follower::start_step() {
  in_step_ = true;
  done_ = 0;
  trace_.clear();
  for (const Kind kind : {Kind::kForwardOnly, Kind::kTraining}) {
    if (plan(kind) != nullptr && !plan(kind)->events.empty()) followed_ = kind;
  }
}

/// Whether this touch is the next event of the followed plan, or of the other one after a change.
bool Follower::stay_on_a_plan(Touch touch) {
  if (expects(*followed(), touch)) return true;
  const Kind alternative = other(*followed_);
  const Schedule* candidate = plan(alternative);
  if (candidate == nullptr || !expects(*candidate, touch) || !fits_so_far(*candidate)) return false;
  change_over(alternative);
  return true;
}

bool Follower::fits_so_far(const Schedule& candidate) const {
  if (done_ > candidate.events.size()) return false;
  const auto begin = candidate.events.begin();
  return std::equal(begin, begin + static_cast<std::ptrdiff_t>(done_), followed()->events.begin(),
                    [](const Event& a, const Event& b) { return a.touch == b.touch; });
}

/// Whether the step is over where a plan is over. A forward that was taken for the first half of a
/// training step ends as the other plan says.
bool Follower::ended_as_planned() const {
  if (done_ == followed()->events.size()) return true;
  const Schedule* alternative = plan(other(*followed_));
  return alternative != nullptr && done_ == alternative->events.size() && fits_so_far(*alternative);
}

/// Evicts what the new plan would not have resident here. What it would have and is not there is
/// gathered when touched, so that from now on never more is resident than the plan says.
void Follower::change_over(Kind kind) {
  const std::vector<bool> planned = residents_after(*plan(kind), done_);
  for (std::size_t unit = 0; unit < resident_.size(); ++unit) {
    if (resident_[unit] && !planned[unit]) evict(static_cast<int>(unit));
  }
  followed_ = kind;
}

void Follower::leave_plan() {
  const Schedule& left = *followed();
  for (std::size_t at = 0; at < done_; ++at) trace_.add(left.events[at].touch);
  followed_.reset();
  ++deviations_;
}

void Follower::follow() {
  const Event& event = followed()->events[done_++];
  for (const int unit : event.evict) {
    if (resident_[index(unit)]) evict(unit);
  }
  bool gathers = !resident_[index(event.touch.unit)];
  if (gathers) gather(event.touch.unit);
  for (const Ahead& ahead : event.gather_ahead) {
    if (resident_[index(ahead.unit)]) continue;
    gather(ahead.unit);
    ahead_.push_back({ahead.unit, ahead.joins && gathers});
    gathers = true;
  }
}

void Follower::go_by_demand(Touch touch) {
  trace_.add(touch);
  const std::size_t may_stay = std::max<std::size_t>(1, index(touch.with));
  while (others_free_to_go(touch.unit) > may_stay) evict(least_recent(touch));
  if (resident_[index(touch.unit)]) return;
  while (!within_limit(options_, resident_bytes_ + unit_bytes_[index(touch.unit)])) {
    evict(least_recent(touch));
  }
  gather(touch.unit);
}

bool Follower::is_kept(std::size_t unit) const {
  return names(options_.keep_gathered, unit) || names(options_.keep_for_backward, unit);
}

std::size_t Follower::others_free_to_go(int touched) const {
  std::size_t count = 0;
  for (std::size_t unit = 0; unit < resident_.size(); ++unit) {
    if (resident_[unit] && unit != index(touched) && !is_kept(unit)) ++count;
  }
  return count;
}

/// The resident unit that was used longest ago, other than those of the operator in hand; one that
/// is kept only when there is no other.
int Follower::least_recent(const Touch& touch) const {
  std::size_t victim = resident_.size();
  const auto key = [&](std::size_t unit) { return std::pair(is_kept(unit), last_use_[unit]); };
  for (std::size_t unit = 0; unit < resident_.size(); ++unit) {
    if (!resident_[unit] || unit == index(touch.unit) || is_held(unit, touch)) continue;
    if (victim == resident_.size() || key(unit) < key(victim)) victim = unit;
  }
  if (victim == resident_.size()) {
    refuse_together(touch, resident_bytes_ + unit_bytes_[index(touch.unit)], options_);
  }
  return static_cast<int>(victim);
}

/// Whether it is one of the touch.with other units that were touched last.
bool Follower::is_held(std::size_t unit, const Touch& touch) const {
  if (touch.with == 0) return false;
  std::int64_t later = 0;
  for (std::size_t other = 0; other < last_use_.size(); ++other) {
    if (other != index(touch.unit) && last_use_[other] > last_use_[unit]) ++later;
  }
  return later < touch.with;
}

void Follower::evict(int unit) {
  resident_[index(unit)] = false;
  resident_bytes_ -= unit_bytes_[index(unit)];
  evicted_.push_back(unit);
}

void Follower::gather(int unit) {
  resident_[index(unit)] = true;
  resident_bytes_ += unit_bytes_[index(unit)];
}

void Follower::remember_trace() {
  std::optional<Schedule>& planned = plans_[static_cast<std::size_t>(kind_of_step())];
  std::vector<Staying> staying;
  if (planned) staying = std::move(planned->staying);
  planned = make_schedule(trace_, unit_bytes_, options_);
  for (Staying& unit : staying) unit.after = std::min(unit.after, planned->events.size());
  planned->staying = std::move(staying);
}

/// Only the first of several steps between two updates gathers what stays.
void Follower::remember_staying() {
  if (staying_.empty()) return;
  const Kind kind = kind_of_step();
  std::optional<Schedule>& planned = plans_[static_cast<std::size_t>(kind)];
  if (!planned) planned.emplace().units = static_cast<int>(unit_bytes_.size());
  planned->staying.assign(staying_.begin(), staying_.end());
  for (Staying& unit : staying_) unit.after = 0;
  std::optional<Schedule>& others = plans_[static_cast<std::size_t>(other(kind))];
  if (others) others->staying.assign(staying_.begin(), staying_.end());
  staying_.clear();
}

}  // namespace fullshard::schedule
