#pragma once

#include <vector>

#include "shard/buffer_pool.h"
#include "shard/unit_memory.h"

namespace fullshard::shard {

/// Units of ranks that do not share memory: slices in the rank's own, and buffers in which units
/// are gathered.
///
/// Gathers of all ranks meet in the order of the calls. With `dynamic`, the first use of any unit
/// after an update gathers all of them, in one order, and they stay until the next update.
class PrivateUnitMemory final : public UnitMemory {
 public:
  PrivateUnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                    const UnitMemoryOptions& options);

  std::byte* gather(std::size_t unit, std::int64_t version) override;
  void release(std::size_t unit) override;
  void take_part(std::int64_t version) override;
  bool keeps_units() const override { return dynamic_; }
  std::int64_t gathered_bytes(std::size_t unit, std::int64_t) const override {
    return gathered_[unit].received;
  }
  double waited_seconds() const override { return waited_seconds_; }

 private:
  void store_rank0s(comm::Group& all, const FlatUnit& unit);
  void gather_all(std::int64_t version);
  void gather_now(std::size_t unit, std::int64_t version);

  struct Gathered {
    at::Tensor buffer;         // undefined while nobody uses the unit
    std::int64_t version = 0;  // of what the buffer holds
    std::int64_t received = 0;
  };

  std::vector<FlatUnit>& units_;
  comm::Group& group_;
  bool dynamic_;
  at::Tensor own_;  // slices of all units
  BufferPool buffers_;
  std::vector<Gathered> gathered_;  // by unit
  std::int64_t all_gathered_ = 0;   // version for which all units were, with `dynamic`
  double waited_seconds_ = 0;
};

}  // namespace fullshard::shard
