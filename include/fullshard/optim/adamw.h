#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "fullshard/optim/groups.h"
#include "fullshard/state/sharded_tensor.h"

namespace fullshard::optim {

struct AdamWOptions {
  double lr = 1e-3;  ///< used by step() when it is given none
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  ///< decoupled, a step: parameter *= 1 - lr * weight_decay
};

/// AdamW (Loshchilov and Hutter, 2019) over one rank's shards, equal to torch::optim::AdamW on the
/// whole parameters. One fused ATen call a group; no pass over the gradients for clipping, except
/// in double precision, where ATen's factor would be rounded to float.
///
/// Holds references to the shards, which must outlive it as storage; their gradients are read from
/// `tensor.grad()` at each step. One thread at a time. Local: no rank waits for another, so all
/// ranks must step equally often with equal arguments, and a gradient must be defined on all ranks
/// or on none.
class AdamW {
 public:
  /// Throws kConfiguration for unusable options or rules, kInvalidArgument for unusable parameters.
  AdamW(std::vector<state::ShardedTensor> parameters, AdamWOptions options,
        std::vector<GroupRule> rules = default_no_decay_rules());

  /// One update at rate `lr` times the group's lr_scale. Parameters without a gradient stay as they
  /// are, and so do their step counters. With a clip coefficient the gradients are multiplied by
  /// it, as if before the step, and are left multiplied. Throws kMisuse, before anything has
  /// changed, when a gradient does not fit its parameter or the coefficient is not a finite number
  /// above 0; and what writing to a parameter throws, which a shard does not always allow.
  void step(double lr, std::optional<double> clip_coefficient = std::nullopt);
  void step() { step(options_.lr); }

  /// Drops the gradients, or fills them with zeros where their memory must stay.
  void zero_grad(bool set_to_none = true);

  /// Makes the state of parameters that have not been stepped yet, as it is before their first
  /// step: what a checkpoint loads into.
  void create_state();

  /// `<name>.exp_avg` and `<name>.exp_avg_sq`, cut as the parameter, and `<name>.step`, a
  /// replicated scalar, of every parameter that has state. They share memory with the optimizer:
  /// writing into them loads state.
  std::vector<state::ShardedTensor> state() const;

  /// Bytes of it now.
  std::int64_t state_bytes() const;

  /// Both moments of one of the parameters; undefined where there are none yet, or for another
  /// tensor.
  std::pair<at::Tensor, at::Tensor> moments_of(const at::Tensor& parameter) const;

  /// A parameter, whose tensor is the same object as before, has become `shard`, with these
  /// moments, undefined where it has none. Nothing for a tensor that is none of the parameters.
  void replace(const state::ShardedTensor& shard, at::Tensor exp_avg, at::Tensor exp_avg_sq);

  const std::vector<state::ShardedTensor>& parameters() const { return parameters_; }
  const AdamWOptions& options() const { return options_; }

 private:
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor step;  ///< float, [1], as ATen's kernel wants it
  };
  struct Group {
    double weight_decay = 0;
    double lr_scale = 1;
    std::vector<std::size_t> members;  ///< indices into parameters_
    std::vector<std::size_t> active;   ///< members that had a gradient when the lists were built
    std::vector<at::Tensor> tensors, grads, exp_avgs, exp_avg_sqs, steps;
  };

  std::optional<std::size_t> find(const at::Tensor& parameter) const;
  void collect_gradients(Group& group);
  void rebuild(Group& group, const std::vector<std::size_t>& active);
  void create_moments(std::size_t parameter);
  void update(Group& group, double lr, std::optional<double> clip_coefficient);

  std::vector<state::ShardedTensor> parameters_;
  AdamWOptions options_;
  std::vector<Moments> moments_;         ///< by parameter; undefined before its first step
  std::vector<Group> groups_;            ///< only groups that have members
  std::vector<std::size_t> active_now_;  ///< scratch of step(), for its capacity
};

}  // namespace fullshard::optim
