#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fullshard/base/deadline.h"
#include "fullshard/comm/group.h"
#include "fullshard/layout/range.h"

namespace fullshard::shard {

/// Which rank of a host adds up which rank's part of a unit's gradients: whoever claims it first.
/// All ranks add in the same order, so it makes no difference to the bits. In shared memory.
class ReductionClaims {
 public:
  /// Where another rank may write what belongs to this one.
  struct Part {
    std::int64_t place;      ///< bytes from the start of the owner's row of step memory
    layout::Range own;       ///< flat elements of the unit
    base::Duration arrival;  ///< when the owner handed the unit over, on the host's steady clock
  };
  static constexpr std::int64_t kNotOffered = -1;

  /// Collective.
  ReductionClaims(comm::Group& group, std::size_t units);

  /// To be called before the ranks are told that the unit is ready here. With place kNotOffered
  /// nobody else may write the part in this round.
  void offer(std::size_t unit, Part part);

  /// Of a rank that has said that the unit is ready there.
  Part offered_by(int rank, std::size_t unit) const;

  /// True for the first rank that asks for the part of `owner` in a round. Whoever has claimed
  /// another rank's part says when it has written it, and does not wait for anybody before.
  bool claim(int owner, std::size_t unit, std::uint64_t round);
  bool is_claimed(int owner, std::size_t unit, std::uint64_t round) const;
  void say_done(int owner, std::size_t unit, std::uint64_t round);
  /// Whether this rank's part, claimed by another, is written and can be read.
  bool is_done(std::size_t unit, std::uint64_t round) const;

 private:
  struct Slot;
  Slot& slot(int rank, std::size_t unit) const;

  int rank_;
  int ranks_;
  std::unique_ptr<comm::SharedSegment> memory_;
};

}  // namespace fullshard::shard
