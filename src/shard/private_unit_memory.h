#pragma once

#include <memory>
#include <span>
#include <vector>

#include "fullshard/comm/work.h"
#include "fullshard/layout/range.h"
#include "shard/buffer_pool.h"
#include "shard/unit_memory.h"

namespace fullshard::shard {

/// Units of ranks that do not share memory: slices in the rank's own, and buffers in which units
/// are gathered.
///
/// Gathers of all ranks meet in the order of the calls, and go on in the background where the group
/// can. With `dynamic`, the first use of any unit after an update gathers all of them, in one
/// order, and they stay until the next update. With `reshard_after_forward`, a unit that is
/// released before a backward leaves an equal piece on each rank of a smaller group, and is
/// gathered from there in the rest of the step.
class PrivateUnitMemory final : public UnitMemory {
 public:
  PrivateUnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                    const UnitMemoryOptions& options);

  void start(std::span<const int> units, std::int64_t version) override;
  std::byte* gather(std::size_t unit, std::int64_t version) override;
  void release(std::size_t unit) override;
  bool shares_units() const override { return false; }
  void move(const std::vector<at::Tensor>& held) override;
  void end_step() override;
  void take_part(std::int64_t version) override;
  bool keeps_units() const override { return dynamic_; }
  std::int64_t kept_bytes() const override;
  bool moves_bytes() const override { return !dynamic_ && group_->size() > 1; }
  std::int64_t gathered_bytes(std::size_t unit, std::int64_t) const override {
    return gathered_[unit].received;
  }
  std::int64_t resharded_bytes() const override;
  std::int64_t bytes_between_hosts() const override {
    return smaller_ == nullptr ? 0 : smaller_->bytes_between_hosts();
  }
  double waited_seconds() const override { return waited_seconds_; }

 private:
  // A collective on its way. The parts of several units lie rank after rank in buffers of their
  // own; a unit by itself comes straight to its place.
  struct Flight {
    std::vector<std::size_t> units;
    bool resharded;
    std::int64_t version;
    at::Tensor mine;
    at::Tensor all;
    comm::Work work;  // the last member: ends before the buffers do
  };
  struct Gathered {
    at::Tensor buffer;         // undefined while nobody uses the unit
    std::int64_t version = 0;  // of what the buffer holds
    std::int64_t received = 0;
    at::Tensor piece;  // of the unit resharded to the smaller group; undefined for none
    std::int64_t piece_version = 0;
    std::shared_ptr<Flight> flight;  // fills the buffer; null once it has come
  };

  at::Tensor place(bool replicated);
  void store_rank0s(comm::Group& all, const FlatUnit& unit);
  void start_all(std::int64_t version);
  bool is_here(std::size_t unit, std::int64_t version) const;
  void launch(std::vector<std::size_t> units, std::int64_t version, bool resharded);
  void start_alone(Flight& flight);
  void start_packed(Flight& flight);
  void land(std::size_t unit);
  void unpack(const Flight& flight);
  void keep_piece(std::size_t unit);
  comm::Group& group_of(const Flight& flight) const;
  const std::byte* own_piece(std::size_t unit, bool resharded) const;
  layout::Range piece_of(std::size_t unit, int rank, bool resharded) const;  // in bytes

  std::vector<FlatUnit>& units_;
  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<comm::Group> smaller_;  // null where units are not resharded
  bool dynamic_;
  std::int64_t bucket_bytes_;  // of units gathered in one collective, with `dynamic`
  at::Tensor own_;             // slices of all units that are cut
  at::Tensor replicated_;      // all of the others
  BufferPool buffers_;
  std::vector<Gathered> gathered_;  // by unit
  // With `dynamic`: versions of which all units' gathers were started, and have come.
  std::int64_t all_started_ = 0;
  std::int64_t all_landed_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace fullshard::shard
