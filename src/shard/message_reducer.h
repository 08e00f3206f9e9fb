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
#include "shard/reduce_bucket.h"

namespace fullshard::shard {

/// Over ranks that do not all share memory, by collectives of the mesh's groups. A unit's gradients
/// are copied into one buffer as they come; when it is complete it is reduced and scattered over
/// the shard group, and what this rank gets of it is averaged over the replicate group, in the
/// background where the groups can; so replicas exchange shards only. Units that are complete one
/// after the other may share a collective, for which they are packed rank after rank. A
/// communication hook replaces all of it. What is left is waited for at the end of backward.
///
/// Collectives meet in the order of the calls, so all ranks must complete the same units in the
/// same order; others get an error that shows what each rank called. With `dynamic`, all units are
/// handed over at the end of backward, in one order, and ranks may differ. Units that are not
/// complete by then are reduced if any rank has a gradient, which takes one more exchange.
class MessageReducer final : public GradientReducer {
 public:
  MessageReducer(const comm::Mesh& mesh, std::vector<FlatUnit>& units, const Options& options);

  std::int64_t collectives() const override { return collectives_; }
  void move() override {
    GradientReducer::move();
    buffers_.clear();
  }

 protected:
  void enter_unit(std::size_t) override {}
  void keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) override;
  void forget(std::size_t unit) override;
  void forget(std::size_t unit, std::size_t parameter) override;
  at::Tensor kept(std::size_t unit, std::size_t parameter) override;
  bool hands_over_early() const override { return !options_.dynamic; }
  void hand_over(std::size_t unit) override;
  void hand_over_rest(const std::vector<std::size_t>& rest) override;
  void poll() override;
  void finish_units() override;

 private:
  // What this rank has of a unit.
  struct Kept {
    at::Tensor whole;  // undefined while there is nothing
    at::ScalarType dtype;
    GradientFlags has;
  };

  // Units on their way.
  struct Flight {
    Bucket units;
    at::Tensor whole;  // gradients of all of them; those of several lie rank after rank
    at::Tensor part;   // of the mean, what this rank holds; undefined where it is all of `whole`
    at::Tensor own;    // and what it updates, where replicas divide that; the last level makes it
    bool on_last_level;
    comm::Work work;  // the last member: ends before the buffers do
    const at::Tensor& result() const { return part.defined() ? part : whole; }
  };

  Kept& keep_all_of(std::size_t unit);
  at::Tensor take(std::int64_t elements, at::ScalarType dtype);
  void give_back(at::Tensor buffer, std::int64_t elements, at::ScalarType dtype);
  at::Tensor place_of(std::size_t unit, std::size_t parameter) const;
  void convert(std::size_t unit);
  void complete(std::size_t unit, GradientFlags any);
  void start(Bucket bucket);
  std::vector<std::int64_t> counts_of(const Bucket& bucket) const;
  comm::Work reduce(const Flight& flight, const std::vector<std::int64_t>& counts) const;
  comm::Work call_hook(const Flight& flight, const std::vector<std::int64_t>& counts) const;
  comm::OpTag tag_of(const Flight& flight) const;
  void start_last_level(Flight& flight);
  void use_replicas_now();
  void advance(bool wait);
  void wait_for(Flight& flight);
  void store(const Flight& flight);
  void end(Flight flight);

  comm::Mesh mesh_;
  Options options_;
  double scale_;  // of the mean
  BufferPool buffers_;
  std::vector<Kept> kept_;  // by unit
  ReduceBuckets buckets_;
  std::deque<Flight> flights_;  // oldest first
  std::int64_t collectives_ = 0;
};

}  // namespace fullshard::shard
