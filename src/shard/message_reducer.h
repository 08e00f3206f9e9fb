#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "fullshard/comm/work.h"
#include "shard/buffer_pool.h"
#include "shard/gradient_flags.h"
#include "shard/gradient_reducer.h"

namespace fullshard::shard {

/// Over ranks that do not all share memory, by collectives of the mesh's groups. A unit's gradients
/// are copied into one buffer as they come; when it is complete it is reduced and scattered over
/// the shard group, and what this rank gets of it is averaged over the replicate group, in the
/// background where the groups can; so replicas exchange shards only. What is left is waited for at
/// the end of backward.
///
/// Collectives meet in the order of the calls, so all ranks must complete the same units in the
/// same order; others get an error that shows what each rank called. With `dynamic`, all units are
/// handed over at the end of backward, in one order, and ranks may differ. Units that are not
/// complete by then are reduced if any rank has a gradient, which takes one more exchange.
class MessageReducer final : public GradientReducer {
 public:
  MessageReducer(const comm::Mesh& mesh, std::vector<FlatUnit>& units, const Options& options);

 protected:
  void enter_unit(std::size_t) override {}
  void keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) override;
  void forget(std::size_t unit) override;
  bool hands_over_early() const override { return !dynamic_; }
  void hand_over(std::size_t unit) override;
  void hand_over_rest(const std::vector<std::size_t>& rest) override;
  void poll() override;
  void finish_units() override;

 private:
  // What this rank has of a unit.
  struct Kept {
    at::Tensor whole;  // undefined while there is nothing
    GradientFlags has;
  };

  // A unit on its way.
  struct Flight {
    std::size_t unit;
    GradientFlags any;  // which parameters have a gradient on any rank
    at::Tensor whole;   // this rank's gradients
    at::Tensor part;    // of the mean, what this rank owns; undefined where it is all of `whole`
    bool on_last_level;
    comm::Work work;  // the last member: ends before the buffers do
    const at::Tensor& result() const { return part.defined() ? part : whole; }
  };

  Kept& kept(std::size_t unit);
  void start(std::size_t unit, GradientFlags any);
  void start_last_level(Flight& flight);
  void advance(bool wait);
  void wait_for(Flight& flight);
  void end(Flight flight);

  comm::Mesh mesh_;
  double scale_;  // of the mean
  bool dynamic_;
  BufferPool buffers_;
  std::vector<Kept> kept_;      // by unit
  std::deque<Flight> flights_;  // oldest first
};

}  // namespace fullshard::shard
