#pragma once

#include <algorithm>
#include <set>
#include <stdexcept>

#include "fullshard/schedule/follower.h"

namespace fullshard::schedule {

/// Carries out a follower's decisions as an engine does, over a set instead of memory, and throws
/// when a decision cannot be carried out.
class EngineModel {
 public:
  explicit EngineModel(Follower& follower) : follower_(follower) {}

  /// Returns whether the touch left the schedule.
  bool touch(Touch touch) {
    const Decision decision = follower_.on_touch(touch);
    for (const int unit : decision.evict) remove(unit);
    bool gathers = resident_.insert(touch.unit).second;
    if (gathers) {
      ++gathers_;
      ++collectives_;
    }
    for (const Ahead& ahead : decision.gather_ahead) {
      if (!resident_.insert(ahead.unit).second) throw std::logic_error("gathered ahead twice");
      if (ahead.joins && !gathers) throw std::logic_error("joins a gather that is none");
      gathers = true;
      ++gathers_;
      collectives_ += ahead.joins ? 0 : 1;
    }
    most_ = std::max(most_, resident_.size());
    peak_bytes_ = std::max(peak_bytes_, follower_.resident_bytes());
    return decision.deviated;
  }

  void end_step() {
    for (const int unit : follower_.end_step()) remove(unit);
    if (!resident_.empty()) throw std::logic_error("a unit is left at the end of the step");
  }

  /// A whole step; returns how often it left the schedule.
  int run(const Trace& trace) {
    gathers_ = 0;
    collectives_ = 0;
    most_ = 0;
    peak_bytes_ = 0;
    int deviations = 0;
    for (const Touch& event : trace.events()) {
      deviations += touch(event) ? 1 : 0;
      deviations += touch(event) ? 1 : 0;  // operators touch a unit many times
    }
    end_step();
    return deviations;
  }

  const std::set<int>& resident() const { return resident_; }
  std::int64_t gathers() const { return gathers_; }          ///< of the latest step
  std::int64_t collectives() const { return collectives_; }  ///< of the latest step
  std::size_t most() const { return most_; }  ///< most units resident in the latest step
  std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  void remove(int unit) {
    if (resident_.erase(unit) != 1) throw std::logic_error("evicted a unit that is not resident");
  }

  Follower& follower_;
  std::set<int> resident_;
  std::int64_t gathers_ = 0;
  std::int64_t collectives_ = 0;
  std::size_t most_ = 0;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace fullshard::schedule
