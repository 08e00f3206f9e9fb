#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fullshard/comm/group.h"
#include "shard/gradient_reducer.h"
#include "shard/reduction_claims.h"
#include "shard/step_memory.h"

namespace fullshard::shard {

/// Over the ranks of a group that share memory. Each finished gradient lies in memory that the
/// others can read, mostly because it was made there; when a unit is complete the rank says so on
/// the board; each rank's range is then read from all ranks' gradients, added in rank order,
/// divided by the number of ranks and written as its gradient shard, in one pass. Units that are
/// complete on every rank are reduced inside backward, whenever another one completes; the rest at
/// its end. Ranks match units by name, not by order.
///
/// Usually a rank does this for its own range. One that is ahead, because its core is quicker or
/// has less to do, does it for those behind as well, which leave their newest unit to it when they
/// are late: so the ranks end backward together, where the quicker ones would wait. A range is
/// claimed by who does it.
///
/// Counters on the board: unit u is ready in round k, then unit u is consumed in round k: this rank
/// has done its part, or another one has claimed that, and does nobody else's any more. A gradient
/// is let go once all ranks have consumed it; that never deadlocks, because consuming waits only
/// for ready counters of the same round, which every rank posts before it begins the next, and what
/// was claimed is done without any waiting.
///
/// A rank by itself has nothing to add: its gradients become those of the shards as they are.
class SharedReducer : public GradientReducer {
 public:
  SharedReducer(comm::Group& group, std::vector<FlatUnit>& units, const Options& options)
      : SharedReducer(group, units, options, group.size() > 1) {}

  /// What this thread makes from now on may be read by the other ranks.
  void begin_step() override { make_tensors_in(memory_); }
  void end_step() override;
  void collect() override;

 protected:
  /// `shares_work`: whether ranks may reduce for each other, which is this class's own business.
  SharedReducer(comm::Group& group, std::vector<FlatUnit>& units, const Options& options,
                bool shares_work);

  bool gives_directly() const override { return is_direct(); }
  void enter_unit(std::size_t unit) override;
  void keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) override;
  void forget(std::size_t unit) override;
  void forget(std::size_t unit, std::size_t parameter) override;
  at::Tensor kept(std::size_t unit, std::size_t parameter) override;
  void hand_over(std::size_t unit) override;
  void hand_over_rest(const std::vector<std::size_t>& rest) override;
  void poll() override;
  void finish_units() override;

  /// Whether all ranks have handed the unit over in this round.
  bool is_ready(std::size_t unit) const { return board_->reached(ready_ + unit, round_); }
  void wait_until_ready(std::size_t unit);
  /// Whether any rank has a gradient; for units that are ready.
  bool anyone_has(std::size_t unit, std::size_t parameter) const;
  /// Memory that a gradient is reduced to, and what it is to be there.
  struct Target {
    std::byte* memory;
    at::ScalarType dtype;
  };
  /// Writes a range of a parameter's reduced gradient to `out`, or adds it there.
  void reduce_range(std::size_t unit, std::size_t parameter, layout::Range range, const Target& out,
                    bool accumulate);
  /// Counts what the other ranks give for a range of a parameter.
  void count_read(std::size_t unit, std::size_t parameter, layout::Range range);
  /// This rank reads the unit's gradients no more.
  void post_consumed(std::size_t unit) {
    board_->post(consumed_ + unit, round_, "reduce_scatter", tag_of(unit));
  }
  /// What an operation on the unit is about now; made without an allocation.
  const comm::OpTag& tag_of(std::size_t unit) {
    tags_[unit].step = static_cast<std::int64_t>(round_);
    return tags_[unit];
  }

  std::vector<std::size_t> pending_;  // units ready here and not reduced yet, oldest first

 private:
  void hold(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);
  at::Tensor place_for_copy(std::size_t unit, std::size_t parameter, at::IntArrayRef shape,
                            at::ScalarType dtype);
  void let_go(std::size_t unit);
  void let_go(at::Tensor& gradient);
  void give(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);
  void announce(std::size_t unit);
  void offer(std::size_t unit);
  void reduce_own(std::size_t unit);
  void reduce_for(int owner, std::size_t unit);
  bool is_late_with(std::size_t unit) const;
  bool is_taken_care_of(std::size_t unit) const;
  bool may_claim(int owner, std::size_t unit) const;
  void finish(std::size_t unit);
  void take_back(std::size_t unit);
  using Temporaries = c10::SmallVector<at::Tensor, 2>;
  at::ScalarType collect_parts(std::size_t unit, std::size_t parameter, layout::Range range,
                               Temporaries& temporaries);
  void add_up(at::ScalarType from, const Target& out, std::int64_t count, bool accumulate) const;
  bool is_direct() const { return group_.size() == 1 && divide_factor_ == 0; }
  bool anyone_has(std::size_t unit) const;
  std::span<std::int64_t> places(int rank, std::size_t unit) const;

  comm::Group& group_;
  double divide_factor_;  // 0: the number of ranks
  std::unique_ptr<comm::SignalBoard> board_;
  std::size_t ready_;     // first of the board's ready counters
  std::size_t consumed_;  // first of its consumed counters

  // Where a rank's gradients of a round are, in its row of the memory, and whether they are exact;
  // -1 for none. One number a parameter, in shared memory.
  std::unique_ptr<comm::SharedSegment> notices_;
  std::vector<std::int64_t> notice_offset_;  // by unit, in a rank's row of notices
  std::int64_t notice_row_ = 0;
  std::shared_ptr<StepMemory> memory_;

  // This rank's whole gradients, until every rank has read them.
  struct Held {
    std::uint64_t round = 0;  // 0 for none
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> copies;  // where small ones that had to be copied lay last
  };
  std::vector<Held> held_;  // by unit
  std::vector<const void*> parts_;
  std::vector<comm::OpTag> tags_;  // by unit

  std::unique_ptr<ReductionClaims> claims_;  // null where every rank does its own
  std::vector<std::uint64_t> reduced_;  // by unit: the last round in which this rank did its own
  std::vector<std::size_t> lent_;       // units of which another rank does its part
  std::vector<std::vector<bool>>
      lent_any_;  // by unit and parameter: whether any rank has a gradient
};

}  // namespace fullshard::shard
