#pragma once

#include <memory>
#include <vector>

#include "shard/unit_memory.h"

namespace fullshard::shard {

/// Units in memory that the ranks of the shard group share, so that gathering copies nothing;
/// replicated ones in the rank's own. Not yet readable by all when the constructor returns;
/// UpdateGate says when.
class SharedUnitMemory final : public UnitMemory {
 public:
  SharedUnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units, bool from_rank0);

  std::byte* gather(std::size_t unit, std::int64_t) override { return whole_[unit]; }
  void release(std::size_t) override {}
  bool shares_units() const override { return true; }
  void count_gathers(std::span<const std::int64_t> by_unit) override;
  void move(const std::vector<at::Tensor>& held) override;
  void take_part(std::int64_t) override {}
  bool moves_bytes() const override { return false; }
  bool keeps_units() const override { return false; }
  std::int64_t gathered_bytes(std::size_t unit, std::int64_t gathers) const override;
  double waited_seconds() const override { return 0; }

 private:
  void allocate(const comm::Mesh& mesh);
  void store_rank0s(const comm::Mesh& mesh, std::size_t unit) const;

  std::vector<FlatUnit>& units_;
  std::unique_ptr<comm::SharedSegment> shared_;
  at::Tensor private_;
  std::vector<std::byte*> whole_;  // by unit
  // By unit: gathers with earlier cuts, and the bytes that they count for.
  std::vector<std::int64_t> earlier_gathers_;
  std::vector<std::int64_t> earlier_bytes_;
};

}  // namespace fullshard::shard
