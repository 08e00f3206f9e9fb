#include "shard/reduction_claims.h"

#include <atomic>

namespace fullshard::shard {

// A cache line each, as all ranks write to them.
struct alignas(64) ReductionClaims::Slot {
  std::uint64_t claimed;  // the last round in which somebody has
  std::uint64_t done;     // the last round in which another rank than the owner had
  Part part;              // written by the owner, before the unit is ready
};

ReductionClaims::ReductionClaims(comm::Group& group, std::size_t units)
    : rank_(group.rank()), ranks_(group.size()) {
  const std::size_t slots = units * static_cast<std::size_t>(ranks_);
  memory_ = group.allocate_shared((slots + 1) * sizeof(Slot), "claims of gradient reductions");
}

ReductionClaims::Slot& ReductionClaims::slot(int rank, std::size_t unit) const {
  const std::size_t number =
      unit * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank);
  return reinterpret_cast<Slot*>(memory_->data())[number];
}

void ReductionClaims::offer(std::size_t unit, Part part) { slot(rank_, unit).part = part; }

ReductionClaims::Part ReductionClaims::offered_by(int rank, std::size_t unit) const {
  return slot(rank, unit).part;
}

bool ReductionClaims::claim(int owner, std::size_t unit, std::uint64_t round) {
  std::atomic_ref<std::uint64_t> claimed(slot(owner, unit).claimed);
  std::uint64_t last = claimed.load(std::memory_order_relaxed);
  while (last < round) {
    if (claimed.compare_exchange_weak(last, round, std::memory_order_acq_rel)) return true;
  }
  return false;
}

bool ReductionClaims::is_claimed(int owner, std::size_t unit, std::uint64_t round) const {
  const std::atomic_ref<std::uint64_t> claimed(slot(owner, unit).claimed);
  return claimed.load(std::memory_order_acquire) >= round;
}

void ReductionClaims::say_done(int owner, std::size_t unit, std::uint64_t round) {
  std::atomic_ref<std::uint64_t>(slot(owner, unit).done).store(round, std::memory_order_release);
}

bool ReductionClaims::is_done(std::size_t unit, std::uint64_t round) const {
  const std::atomic_ref<std::uint64_t> done(slot(rank_, unit).done);
  return done.load(std::memory_order_acquire) >= round;
}

}  // namespace fullshard::shard
