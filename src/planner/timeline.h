#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "fullshard/schedule/schedule.h"
#include "planner/traffic.h"
#include "planner/units.h"

namespace fullshard::planner {

/// Buffers that are used again and never given back, of each size apart (shard::BufferPool).
class BufferCount {
 public:
  void take(std::int64_t bytes);
  void give_back(std::int64_t bytes) { --sizes_[bytes].now; }
  std::int64_t bytes() const;  ///< of all that were ever needed

 private:
  struct Size {
    std::int64_t now = 0;
    std::int64_t most = 0;
  };
  std::map<std::int64_t, Size> sizes_;
};

/// What a forward and its backward took, in seconds; all ranks do the same at the same time.
struct Timeline {
  double compute = 0;
  double recompute = 0;  ///< of it
  double gather_waits = 0;
  double adding = 0;
  double reduction_waits = 0;
  std::int64_t gather_buffers = 0;    ///< bytes that gathered units need in all
  std::int64_t gradient_buffers = 0;  ///< bytes of gradients from a unit's first one until it is
                                      ///< reduced by messages
};

/// Plays a forward and its backward. Computing and the network go on side by side: a gather begins
/// when the schedule says so, a reduction when the unit's gradients are complete, and the network
/// does one after the other, in that order. A visit waits until its unit is there; the step waits
/// for all reductions.
class TimelinePlayer {
 public:
  struct Rates {
    double seconds_per_flop;  ///< of a token's operations, on all tokens of a forward
    double unit_overhead;
  };

  TimelinePlayer(const UnitSet& set, std::span<const UnitCosts> costs, Rates rates);

  /// `schedule` was made from the set's trace.
  Timeline play(const schedule::Schedule& schedule);

 private:
  void carry_out(const schedule::Event& event);
  void start_gather(int unit);
  void wait_for(int unit);
  void compute(std::size_t visit);
  void reduce_completed(std::size_t visit);
  double occupy_network(double seconds);
  std::int64_t gradient_buffers() const;

  struct Held {
    double from = 0;
    double until = 0;
    std::int64_t bytes = 0;
  };

  const UnitSet& set_;
  std::span<const UnitCosts> costs_;
  Rates rates_;
  double now_ = 0;
  double network_free_at_ = 0;
  std::vector<double> landed_;   // by unit: when its gather ends
  std::vector<bool> resident_;   // by unit, or on its way
  std::vector<Held> gradients_;  // by unit
  BufferCount gather_buffers_;
  Timeline timeline_;
};

}  // namespace fullshard::planner
