#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fullshard::residency {

/// Which units a rank has used in a step, and in the step before. Allocates when made only.
class UnitUses {
 public:
  explicit UnitUses(std::size_t units) : step_of_(units, 0) {
    now_.reserve(units);
    before_.reserve(units);
  }

  void note(int unit) {
    if (step_of_[static_cast<std::size_t>(unit)] != step_) add(unit);
  }

  /// What is noted next belongs to another step.
  void end_step() {
    if (std::exchange(ended_, true)) return;
    ++step_;
  }

  /// In this step, or in the one that has just ended; in the order of their first uses.
  const std::vector<int>& now() const { return now_; }
  /// In the step before.
  const std::vector<int>& before() const { return before_; }

 private:
  void add(int unit) {
    if (std::exchange(ended_, false)) {
      std::swap(now_, before_);
      now_.clear();
    }
    step_of_[static_cast<std::size_t>(unit)] = step_;
    now_.push_back(unit);
  }

  std::int64_t step_ = 1;
  std::vector<std::int64_t> step_of_;  // by unit: the last in which it was used
  std::vector<int> now_;
  std::vector<int> before_;
  bool ended_ = true;
};

}  // namespace fullshard::residency
