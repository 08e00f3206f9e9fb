#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fullshard/layout/balance.h"
#include "fullshard/shard/sharded_module.h"

namespace fullshard::shard {

struct LoadBalanceOptions {
  /// Steps from one look at the ranks to the next, of which each is a small collective. Fewer react
  /// sooner and measure less well. Default: 20.
  int every = 20;

  /// Shares move for speed where two looks in a row promise that it makes the slowest rank's step
  /// shorter by this part. Less moves more often, for less. The same on all ranks, as `every` is.
  /// Default: 2 %.
  double least_gain = 0.02;

  /// Bytes that this rank is to use at most; ranks may have different limits. Shares leave a rank
  /// that is above, and none grows beyond it. 0: no limit.
  std::int64_t memory_limit_bytes = 0;

  /// Bytes that this rank uses now. Absent: the proportional set size of its process, in which
  /// memory that several processes share is counted in equal parts.
  std::function<std::int64_t()> memory_in_use = {};
};

/// What a look at the ranks of the shard group found; the same on every rank.
struct LoadBalance {
  std::vector<layout::RankLoad> loads;  ///< a step's costs and the room of each rank
  std::vector<double> owned;            ///< elements that each rank updates when it looks
  std::vector<double> wanted;           ///< that each should update
  double seconds = 0;                   ///< of the slowest rank's step, without waiting, as it is
  double seconds_then = 0;              ///< and as it should be
  bool over_limit = false;              ///< a rank uses more than its limit
  bool fits = true;                     ///< the ranks have room for everything, within their limits
  bool moved = false;                   ///< whether shares were moved to `wanted`
};

/// Watches how long ranks compute and how much memory they use, and moves shares of a sharded model
/// between them while it is trained: to ranks that would wait otherwise, and away from those whose
/// memory is short. What a share costs is measured: the time of operators on shards, such as an
/// optimizer's, and of reducing gradients; and the bytes of a shard, its gradient and what
/// followers keep. Training is not changed by it, as ShardedModule::move_shards says.
///
///   for each step: forward, backward, balancer.note_memory(), optimizer step, zero_grad,
///   balancer.end_step()
class LoadBalancer {
 public:
  /// `followers` as in ShardedModule::move_shards; they must outlive the object. Throws
  /// base::Error kInvalidArgument for options that cannot be used, kMismatch where ranks differ in
  /// those that they have to share. Collective.
  LoadBalancer(ShardedModule sharded, std::vector<state::ElementState*> followers,
               LoadBalanceOptions options = {});

  /// Where a step needs most memory, which is after backward; counts in the last step before a
  /// look. Not a collective.
  void note_memory();

  /// After the gradients have been cleared; on all ranks alike. In every `every`-th step, but not
  /// counting the first, looks at the ranks and may move shares.
  std::optional<LoadBalance> end_step();

 private:
  struct Sample;
  struct Counted {
    std::chrono::steady_clock::time_point when;
    double waited = 0;
    double owning = 0;  // seconds of work that grows with the share
  };

  Counted counted() const;
  double owned_elements() const;
  double model_elements() const;
  double bytes_per_element() const;
  Sample sample() const;
  std::vector<Sample> exchange(const Sample& mine) const;
  LoadBalance weigh(const std::vector<Sample>& samples) const;
  static void choose(LoadBalance& found);
  bool is_wanted(LoadBalance& found);
  void require_same_options() const;

  ShardedModule sharded_;
  std::vector<state::ElementState*> followers_;
  LoadBalanceOptions options_;
  int steps_ = 0;  // since the last look; below 0 before the first
  Counted before_;
  std::int64_t most_bytes_ = 0;  // in use in the last step before a look
  bool promised_ = false;        // the last look promised a quicker step
  bool relieved_ = false;        // shares were moved for memory then
};

}  // namespace fullshard::shard
