#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fullshard/comm/group.h"
#include "fullshard/state/sharded_tensor.h"
#include "shard/flat_unit.h"
#include "shard/step_memory.h"

namespace fullshard::shard {

/// What the reducer counted for one unit.
struct UnitReduction {
  std::int64_t reductions = 0;
  std::int64_t bytes_read = 0;  ///< of other ranks' gradients
};

/// Averages gradients over the ranks of a group on one host. Each finished gradient lies in memory
/// that the others can read, mostly because it was made there; when a unit is complete the rank
/// says so on the board; each rank then reads its own range from all ranks' gradients, adds in rank
/// order, divides by the number of ranks and writes its gradient shard, in one pass. Units that are
/// complete on every rank are reduced inside backward, whenever another one completes; the rest at
/// its end.
///
/// Every backward pass that produced a gradient and synchronises is one round, on every rank. One
/// more begins in a pass where a unit that was complete gets another gradient, from a backward pass
/// inside this one; all ranks must do so alike.
/// Counters on the board: unit u is ready in round k, then unit u is consumed in round k. A
/// gradient is let go once all ranks have consumed it; that never deadlocks, because consuming
/// waits only for counters of the same round, which every rank posts before it begins the next.
///
/// A rank by itself has nothing to add: its gradients become those of the shards as they are.
class GradientReducer {
 public:
  static std::size_t counters(std::size_t units) { return 2 * units; }

  /// All references must outlive the reducer. Collective: allocates shared memory.
  GradientReducer(comm::Group& group, std::vector<FlatUnit>& units, comm::SignalBoard& board);

  /// `shards[u]` are this rank's shard tensors of unit u in layout order; their .grad() is set.
  /// Once, before the first backward.
  void set_shards(std::vector<std::vector<at::Tensor>> shards) { shards_ = std::move(shards); }

  /// Takes the gradient of one parameter. Called inside backward.
  void add(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);

  /// What this thread makes from now on may be read by the other ranks: a step begins, or goes on.
  void begin_step() { make_tensors_in(memory_); }
  void end_step() { make_tensors_in(nullptr); }

  /// Gives back the memory of reduced gradients that no shard has any more.
  void release_unused();

  /// Whether backward passes from now on reduce what they make. While off, gradients add up on this
  /// rank, whole, and no rank waits for another; the next pass with it on reduces the sum. All
  /// ranks switch alike. Not to be called inside backward.
  void set_sync(bool sync) { sync_ = sync; }

  /// Gradients are the sum over ranks divided by this. Default: the number of ranks.
  void set_divide_factor(double factor) { divide_factor_ = factor; }

  /// Ends a backward pass. With sync, completes the round: units that got no or not all gradients
  /// count what is missing as zero. A parameter without a gradient on every rank keeps an undefined
  /// one, as in unsharded training.
  void finish_pass();

  /// Forgets what a backward pass that threw has made. Throws base::Error(kMisuse) when it had
  /// handed gradients to other ranks.
  void abandon_round();

  /// Between passes: forgets gradients that passes without sync have left.
  void discard_unsynchronised();

  /// Takes back the memory of gradients that every rank has read.
  void collect();

  const UnitReduction& reduction(std::size_t unit) const { return counts_[unit]; }
  std::int64_t unreduced_bytes() const { return held_bytes_; }
  std::int64_t peak_unreduced_bytes() const { return peak_held_bytes_; }
  void reset_peak() { peak_held_bytes_ = held_bytes_; }
  std::int64_t copied_bytes() const { return copied_bytes_; }
  std::int64_t gradient_bytes() const;
  double exposed_seconds() const { return exposed_seconds_; }
  double exposed_seconds(std::size_t unit) const { return unit_exposed_[unit]; }

 private:
  void begin_unit(std::size_t unit);
  void begin_round();
  void finish_round();
  void complete_unit(std::size_t unit);
  void complete_rest();
  void poll();
  void hold(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);
  void let_go(std::size_t unit);
  void give(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);
  void reduce(std::size_t unit);
  void reduce_own(std::size_t unit, std::size_t parameter, bool accumulate);
  void collect_parts(std::size_t unit, std::size_t parameter, layout::Range range,
                     at::Tensor& zeros);
  bool is_direct() const { return group_.size() == 1 && divide_factor_ == 0; }
  void attach(std::size_t unit, std::size_t parameter);
  bool holds_gradient(std::size_t unit, std::size_t parameter);
  bool anyone_has(std::size_t unit, std::size_t parameter) const;
  bool anyone_has(std::size_t unit) const;
  std::span<std::int64_t> places(int rank, std::size_t unit) const;

  comm::Group& group_;
  std::vector<FlatUnit>& units_;
  std::vector<std::vector<at::Tensor>> shards_;
  comm::SignalBoard& board_;
  std::size_t ready_;     // first of the board's ready counters
  std::size_t consumed_;  // first of its consumed counters

  // Where a rank's gradients of a round are, in its row of the memory; -1 for none. One number a
  // parameter, in shared memory.
  std::unique_ptr<comm::SharedSegment> notices_;
  std::vector<std::int64_t> notice_offset_;  // by unit, in a rank's row of notices
  std::int64_t notice_row_ = 0;
  std::shared_ptr<StepMemory> memory_;

  std::uint64_t round_ = 0;  // of the last round begun
  bool in_round_ = false;
  bool sync_ = true;
  double divide_factor_ = 0;  // 0: the number of ranks
  std::vector<bool> begun_;   // by unit: its notice is of this round
  std::vector<std::int64_t>
      remaining_;                     // by unit: gradients still to come in this pass, -1 for all
  std::vector<bool> posted_;          // by unit: ready in this round
  std::vector<std::size_t> pending_;  // units ready here and not reduced yet, oldest first

  // This rank's whole gradients, until every rank has read them.
  struct Held {
    std::uint64_t round = 0;  // 0 for none
    std::vector<at::Tensor> gradients;
  };
  std::vector<Held> held_;  // by unit
  std::int64_t held_bytes_ = 0;
  std::int64_t peak_held_bytes_ = 0;
  std::int64_t copied_bytes_ = 0;
  std::vector<const void*> parts_;
  std::vector<UnitReduction> counts_;
  std::vector<double> unit_exposed_;
  double exposed_seconds_ = 0;
};

}  // namespace fullshard::shard
