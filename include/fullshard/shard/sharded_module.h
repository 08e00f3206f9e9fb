#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "fullshard/shard/counters.h"
#include "fullshard/shard/options.h"
#include "fullshard/state/element_state.h"
#include "fullshard/state/sharded_tensor.h"

namespace fullshard::shard {

class Engine;

/// What happens to changes made inside an unsharded scope.
enum class UnshardedMode {
  kReadOnly,  ///< changes are discarded
  kWrite,     ///< every rank's changes to its own shard are kept
};

/// While it lives, every parameter of the model is whole on this rank: a private copy that can be
/// read and changed like any tensor. All ranks must open and close scopes together.
class UnshardedScope {
 public:
  UnshardedScope(UnshardedScope&&) noexcept = default;
  UnshardedScope& operator=(UnshardedScope&&) = delete;

  /// Like close(), but never throws: a failure is kept and rethrown at the engine's next wait.
  /// During stack unwinding the changes of a write scope are discarded.
  ~UnshardedScope();

  /// Ends the scope; in write mode waits until every rank has stopped using the old values, then
  /// stores this rank's shard.
  void close();

 private:
  friend class ShardedModule;
  UnshardedScope(std::shared_ptr<Engine> engine, UnshardedMode mode);
  std::shared_ptr<Engine> engine_;
  UnshardedMode mode_;
};

/// Full values by the model's own dotted names; a tied parameter appears under each of its names.
using StateDict = std::map<std::string, at::Tensor>;

/// What a non-strict load found.
struct LoadReport {
  std::vector<std::string> missing;     ///< in the model, not given
  std::vector<std::string> unexpected;  ///< given, not in the model
};

/// Handle of a sharded model on one rank. Value type; copies refer to the same engine. The module
/// itself is used as before: its parameters become resident when an operator touches them.
/// Called from the rank's own thread only.
class ShardedModule {
 public:
  explicit ShardedModule(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  /// This rank's shards, one-dimensional leaves whose .grad() is the reduced gradient: what to give
  /// to an optimizer. A parameter of which this rank owns nothing is an empty tensor.
  std::vector<at::Tensor> parameters() const;

  /// The same with name, global shape and the range owned.
  const std::vector<state::ShardedTensor>& named_parameters() const;

  /// The p-norm of the gradient of the whole model (all ranks' shards; a tied parameter once), p >=
  /// 1 or infinity. Collective; the same value on every rank.
  double grad_norm(double norm_type = 2.0) const;

  /// Scales all gradients so that their norm is at most `max_norm`; returns the norm before.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0) const;

  /// Drops the gradients, as optimizer.zero_grad() does, and with them what backward passes without
  /// sync have left. An optimizer knows nothing of those: its zero_grad() drops them too, at the
  /// next backward, where it drops a .grad, but it cannot where there is none yet, nor when told to
  /// zero in place. module->zero_grad() clears the module's parameters wholly, one of its modules'
  /// zero_grad() that module's: dropping takes effect at the next backward. The memory of a .grad
  /// is used again by the next backward: clone what is to be kept.
  void zero_grad() const;

  /// Whether the next backward passes reduce their gradients over the ranks. Off for all but the
  /// last of several micro-batches, there is one reduction a step instead of one a micro-batch, at
  /// the price of whole gradients in this rank's memory until then. All ranks switch alike.
  void set_requires_gradient_sync(bool sync) const;

  /// Full parameters for reading, or for editing with UnshardedMode::kWrite. Collective.
  UnshardedScope unsharded(UnshardedMode mode = UnshardedMode::kReadOnly) const;

  /// Copies of all parameters, whole, and of rank 0's buffers and ignored parameters. Collective.
  /// With rank0_only the other ranks get an empty map and hold no more than one unit at a time.
  StateDict full_state_dict(bool rank0_only = false) const;

  /// Replaces parameters and buffers; ignored parameters are written in place. Collective; every
  /// rank passes the same dictionary. Nothing is changed when a shape differs or, with `strict`, a
  /// name is missing or unknown; the error lists all of them.
  LoadReport load_state_dict(const StateDict& state, bool strict = true) const;

  /// Divides units between the ranks of the shard group by other weights, which are as in
  /// FullyShardOptions::shard_weights, and moves what belongs to each element with it: parameters
  /// and what `followers` keep, an optimizer's state for instance (optim/element_state.h). The
  /// tensors of parameters() stay the same objects, of other sizes; aliases of them end. Training
  /// goes on as if nothing had happened. Collective; between steps, when the gradients have been
  /// cleared. For its duration each rank holds what is to be its share beside what was, and one
  /// whole unit. Returns whether any cut has moved.
  ///
  /// Throws base::Error, having changed nothing: kMisuse where there are gradients, in a backward
  /// pass or an unsharded() scope, and for an optimizer whose state cannot be moved;
  /// kInvalidArgument for weights that do not fit; kMismatch where ranks pass different ones, or
  /// followers keep something for a parameter on some ranks only.
  bool move_shards(const std::vector<double>& weights,
                   const std::vector<state::ElementState*>& followers = {}) const;

  /// Evicts every resident unit. After it live_unsharded_bytes is 0, but with `dynamic` where ranks
  /// do not share memory: there units stay until the next update.
  void release() const;

  Counters counters() const;

  /// Restarts the peaks of the counters from the present values.
  void reset_peak() const;

  /// Elements of all parameters of the model, a tied one once, padding not counted.
  std::int64_t parameter_count() const;

  /// A table: of each unit strategy, dtype and bytes, which its parameters have in common; of each
  /// parameter shape, the ranges that ranks of the shard group own, and its atom where that is not
  /// an element; where replicas divide updates, which rank of the job updates what.
  std::string describe() const;

  /// The plan that training steps follow now, as schedule/text.h writes it; empty before the end of
  /// the first step.
  std::string schedule() const;

  /// The module that was sharded; null for a TorchScript module.
  const std::shared_ptr<torch::nn::Module>& module() const;
  const comm::Mesh& mesh() const;

 private:
  friend class LoadBalancer;
  std::shared_ptr<Engine> engine_;
};

}  // namespace fullshard::shard
