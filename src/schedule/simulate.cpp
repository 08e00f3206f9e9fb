#include "fullshard/schedule/simulate.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/error.h"

namespace fullshard::schedule {
namespace {

class Replay {
 public:
  Replay(const Schedule& schedule, std::span<const std::int64_t> unit_bytes)
      : schedule_(schedule),
        unit_bytes_(unit_bytes),
        resident_(unit_bytes.size()),
        stays_(unit_bytes.size()) {
    result_.unit_gathers.resize(unit_bytes.size());
  }

  SimulationResult run() {
    for (; at_ < schedule_.events.size(); ++at_) {
      gather_staying();
      const Event& event = schedule_.events[at_];
      evict(event.evict);
      bool gathers = !resident_[known(event.touch.unit)];
      if (gathers) gather({event.touch.unit, false});
      for (const Ahead& ahead : event.gather_ahead) {
        gather(ahead, gathers);
        gathers = true;
      }
    }
    gather_staying();
    if (staying_ < schedule_.staying.size()) {
      refuse(schedule_.staying[staying_].unit, "stays from an event on that does not come");
    }
    evict(schedule_.evict_at_end);
    for (const Staying& staying : schedule_.staying) resident_[known(staying.unit)] = false;
    const auto left = std::find(resident_.begin(), resident_.end(), true);
    if (left != resident_.end()) refuse(left - resident_.begin(), "is never evicted");
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::int64_t unit, std::string_view what) const {
    const bool at_end = at_ == schedule_.events.size();
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("schedule, {}: unit {} {}",
                                  at_end ? "end" : fmt::format("event {}", at_), unit, what));
  }

  std::size_t known(int unit) const {
    if (unit < 0 || static_cast<std::size_t>(unit) >= unit_bytes_.size()) {
      refuse(unit, fmt::format("does not exist; there are {} units", unit_bytes_.size()));
    }
    return static_cast<std::size_t>(unit);
  }

  void gather_staying() {
    for (bool gathers = false; staying_ < schedule_.staying.size(); gathers = true) {
      const Staying& staying = schedule_.staying[staying_];
      if (staying.after != at_) return;
      gather({staying.unit, staying.joins}, gathers);
      stays_[known(staying.unit)] = true;
      ++staying_;
    }
  }

  /// `gathers`: whether there is a gather to join.
  void gather(Ahead ahead, bool gathers = false) {
    const std::size_t i = known(ahead.unit);
    if (ahead.joins && !gathers) refuse(ahead.unit, "joins a gather and there is none before");
    if (resident_[i]) refuse(ahead.unit, "is gathered although it is resident");
    resident_[i] = true;
    bytes_ += unit_bytes_[i];
    result_.gathers += 1;
    result_.collectives += ahead.joins ? 0 : 1;
    result_.gathered_bytes += unit_bytes_[i];
    result_.unit_gathers[i] += 1;
    result_.peak_bytes = std::max(result_.peak_bytes, bytes_);
  }

  void evict(const std::vector<int>& units) {
    for (const int unit : units) {
      const std::size_t i = known(unit);
      if (!resident_[i]) refuse(unit, "is evicted although it is not resident");
      if (stays_[i]) refuse(unit, "is evicted although it stays");
      resident_[i] = false;
      bytes_ -= unit_bytes_[i];
    }
  }

  const Schedule& schedule_;
  std::span<const std::int64_t> unit_bytes_;
  std::size_t at_ = 0;
  std::size_t staying_ = 0;  // of the units that stay, those gathered
  std::vector<bool> resident_;
  std::vector<bool> stays_;
  std::int64_t bytes_ = 0;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const Schedule& schedule, std::span<const std::int64_t> unit_bytes) {
  return Replay(schedule, unit_bytes).run();
}

}  // namespace fullshard::schedule
