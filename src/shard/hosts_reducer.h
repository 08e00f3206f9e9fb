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
#include "shard/reduce_bucket.h"
#include "shard/shared_reducer.h"

namespace fullshard::shard {

/// Over shard groups that share memory and replicas that do not: each host's ranks reduce as they
/// do by themselves, and what a rank gets of a unit, or of a bucket of them, is averaged over its
/// replicate group in the background. So only shards leave the host.
///
/// Within a host ranks may differ in what they use; the ranks of a replicate group may not, unless
/// `dynamic`, as with MessageReducer.
class HostsReducer final : public SharedReducer {
 public:
  HostsReducer(const comm::Mesh& mesh, std::vector<FlatUnit>& units, const Options& options);

  std::int64_t collectives() const override { return collectives_; }
  void move() override {
    GradientReducer::move();
    buffers_.clear();
  }

 protected:
  bool hands_over_early() const override { return !dynamic_; }
  void hand_over_rest(const std::vector<std::size_t>& rest) override;
  void poll() override;
  void finish_units() override;

 private:
  // Units that the host has reduced, on their way between hosts.
  struct Flight {
    Bucket units;
    at::Tensor part;  // of the mean, what this rank holds
    at::Tensor own;   // and what it updates, where replicas divide that
    comm::Work work;  // the last member: ends before the buffers do
  };

  GradientFlags flags_here(std::size_t unit) const;
  void reduce_here(std::size_t unit, GradientFlags any);
  void start(Bucket bucket);
  void finish_first();

  comm::Mesh mesh_;
  double scale_;  // of the mean
  bool dynamic_;
  BufferPool buffers_;
  ReduceBuckets buckets_;
  std::deque<Flight> flights_;  // oldest first
  std::int64_t collectives_ = 0;
};

}  // namespace fullshard::shard
