#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "fullshard/layout/parameter.h"
#include "fullshard/shard/communication_hook.h"
#include "fullshard/shard/mixed_precision.h"
#include "fullshard/shard/wrap_policy.h"

namespace fullshard::shard {

/// What is split over the ranks of the shard group. Names and meaning follow PyTorch FSDP.
/// On a mesh with replicas, gradients are averaged over all ranks whatever the strategy.
enum class ShardingStrategy {
  FULL_SHARD,     ///< parameters, gradients, optimizer state; parameters leave after forward
  SHARD_GRAD_OP,  ///< the same, but parameters stay gathered from forward to the end of backward
  NO_SHARD,       ///< every rank holds everything; gradients are averaged (data parallel)
  HYBRID_SHARD,   ///< FULL_SHARD inside the mesh's shard group, replicated over the others
  SHARD_OPTIMIZER_ONLY,  ///< parameters stay gathered for good; one gather after each update
};

/// What holds for the parameters whose dotted names match a pattern, which are in a module of a
/// class, or of a dtype; given several of these, for those with all. A tied parameter has several
/// names, in modules of their own, and matches by any of them.
struct ParameterRule {
  std::string pattern;  ///< `*` any run of characters, `?` any one; empty: any name
  /// Of a module that holds the parameter, itself or in a module inside it, as is_of_class()
  /// compares names; empty: any. Where modules of several classes hold it, the first rule counts.
  std::string module_class = {};
  /// Says instead whether a C++ module is of the class; rule_for() sets it. Absent: by name.
  bool (*is_instance)(const torch::nn::Module&) = nullptr;
  /// Of the parameter as it is before it is sharded; absent: any.
  std::optional<at::ScalarType> of_dtype = std::nullopt;
  std::optional<ShardingStrategy> strategy;  ///< absent: the model's
  std::optional<layout::Atom> atom;          ///< where it may be cut; absent: at any element
  std::int64_t group = 1;  ///< with kRow and kColumn: rows or columns of one head, one expert
  /// What it is stored, gathered and reduced in: it is converted when it is sharded, and operators
  /// see it so, whatever the model's mixed precision is. Floating-point parameters only. Absent: as
  /// it is. Parameters of different dtypes are gathered apart.
  std::optional<at::ScalarType> dtype;
  bool ignore = false;  ///< left alone: not sharded, not paged, its gradient not averaged
};

/// `rule` for all parameters in modules of class `Module` or of one derived from it, for instance
/// rule_for<torch::nn::LayerNormImpl>({.dtype = at::kFloat}).
template <typename Module>
ParameterRule rule_for(ParameterRule rule = {}) {
  rule.module_class = c10::demangle(typeid(Module).name());
  rule.is_instance = [](const torch::nn::Module& module) {
    return dynamic_cast<const Module*>(&module) != nullptr;
  };
  return rule;
}

/// How a model is sharded. The defaults suit a model that nobody has tuned.
struct FullyShardOptions {
  /// Which modules become units, that is, are gathered and freed together. Smaller units need less
  /// memory and make more collectives. Default: chosen from the model's structure and sizes.
  WrapPolicy auto_wrap_policy = automatic();

  /// Less sharding means more memory and fewer gathers. Default: everything sharded.
  ShardingStrategy sharding_strategy = ShardingStrategy::FULL_SHARD;

  /// Exceptions by parameter; the first rule that matches it counts. A rule that matches no
  /// parameter is an error. Parameters of one unit with different strategies are
  /// gathered apart.
  std::vector<ParameterRule> rules = {};

  /// Computing and communicating in another dtype than that of the shards. Default: all in the
  /// dtype that each parameter has.
  MixedPrecision mixed_precision = {};

  /// Start from rank 0's parameters and buffers on every rank. Off, each rank gives its own shard
  /// of what it holds, and ranks whose values differ are an error. Default: on.
  bool sync_module_states = true;

  /// Gradients are the sum over all ranks divided by this, with every strategy alike; 0 divides by
  /// the number of ranks, which gives the mean. Set it where losses are sums, for instance over
  /// tokens.
  double gradient_divide_factor = 0;

  /// Share of each rank of the shard group, relative to the others; empty for equal shares. A rank
  /// with less memory gets less; one with 0 owns nothing.
  std::vector<double> shard_weights = {};

  /// Parameters of fewer elements are not cut but owned whole by one rank. More saves small pieces,
  /// at the price of uneven shares.
  std::int64_t min_shard_elements = 0;

  /// Upper bound of bytes gathered at once on a rank, 0 for none. Units that stay for good count. A
  /// bound that cannot hold those and one unit more is an error, and so is an operator that uses
  /// parameters of several units which it cannot hold; a tight one costs additional gathers.
  std::int64_t max_unsharded_bytes = 0;

  /// Units, by name patterns, that stay gathered from first use to the end of the step: one gather
  /// instead of two, at the price of their memory.
  std::vector<std::string> keep_gathered = {};

  /// Where the ranks of the shard group do not share memory: ranks may use units in different
  /// orders, and skip some, which then count as zero gradient. Costs most of the overlap of
  /// communication, and the memory of all parameters: their gathers begin together at the first use
  /// after an update, in buckets, and they stay until the next. Off, ranks that differ get an error
  /// that names the units. Sharing a host's memory, ranks may always differ, and this changes
  /// nothing.
  bool dynamic = false;

  /// Units gathered ahead of use while a forward runs. 0 gathers on touch; 1 hides a gather behind
  /// one unit's computation where gathering moves bytes, and holds one unit more. Absent: 1 where
  /// gathering moves bytes, 0 where ranks share a host's memory, which makes gathering free. Passes
  /// without gradients gather ahead as well, and units that stay do after an update, in the order
  /// of the last time; gather_bucket_bytes and the limits hold for them too.
  std::optional<int> forward_prefetch = {};
  /// The same while a backward runs.
  std::optional<int> backward_prefetch = {};

  /// Bounds the gathers in flight by the two depths above. Off, units are gathered as far ahead as
  /// max_unsharded_bytes allows, up to the end of the forward or the backward; without that bound
  /// the whole model is. Default: on.
  bool limit_all_gathers = true;

  /// Units that are used one after the other are gathered in one collective while they have at most
  /// this many bytes together; 0 gathers each alone. Larger makes fewer collectives of small units,
  /// and holds them earlier. Sharing a host's memory, it gains nothing.
  std::int64_t gather_bucket_bytes = 0;

  /// Units whose gradients are complete one after the other are reduced in one collective while
  /// they have at most this many bytes together; 0 reduces each alone. Larger makes fewer
  /// collectives of small units, and begins them later: when they have this many bytes, or the next
  /// unit does not fit. Between hosts; inside one that shares its memory, it gains nothing.
  std::int64_t reduce_bucket_bytes = 0;

  /// Where the ranks of the shard group do not share memory: a unit that leaves after its forward
  /// is kept in equal pieces by each group of this many neighbouring ranks of the shard group,
  /// usually those of a host, so that its backward gathers it among them. More gathers then stay
  /// inside a host, at the price of the unit's bytes divided by this on each rank from forward to
  /// backward. It has to divide the ranks of the shard group. 0, or all ranks: as sharded; 1: units
  /// stay gathered until their backward is done. Sharing a host's memory, only 1 has an effect.
  int reshard_after_forward = 0;

  /// On a mesh with replicas: each rank updates only its part of the shard that it has in common
  /// with its replicas, so that gradients after reduction and optimizer state are divided over all
  /// ranks. Parameters stay as they are, divided over the shard group. Costs a gather of the
  /// updated parts among replicas after each update, where there was an all_reduce of gradients and
  /// is now a reduce_scatter. Default: off, every replica updates the same.
  bool shard_optimizer_over_replicas = false;

  /// Gradients are divided by this before they travel and multiplied by it afterwards, so that
  /// those of many ranks stay inside the range of a 16-bit type whatever adds them up. What is here
  /// adds in fp32 before it rounds (comm::ReduceOp) and does not need it; a communication hook may.
  double gradient_predivide_factor = 1;

  /// Replaces how gradients are averaged; for units of all strategies. Absent: in the order of the
  /// ranks, sums in fp32 or better. Sharing a host's memory, it costs the copy that direct
  /// reduction spares.
  CommunicationHook communication_hook = {};
};

}  // namespace fullshard::shard
