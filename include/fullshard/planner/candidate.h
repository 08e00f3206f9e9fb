#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/base/dtype.h"

namespace fullshard::planner {

/// What is divided over which ranks: shard::ShardingStrategy, and the mesh that goes with it.
enum class Strategy {
  kFullShard,
  kShardGradOp,
  kShardOptimizerOnly,
  kNoShard,
  kHybridShard,    ///< each host holds all parameters; gradients are averaged between hosts
  kHybridDivided,  ///< the same with shard_optimizer_over_replicas
};

/// What is gathered at once.
struct UnitCut {
  enum class Kind {
    kHalves,  ///< the attention of each block, and its MLP
    kBlocks,  ///< `blocks` blocks together, the root takes the rest
    kWhole,   ///< all of the model
  };
  Kind kind = Kind::kBlocks;
  int blocks = 1;  ///< of kBlocks

  bool operator==(const UnitCut&) const = default;
};

/// Where parameters may be cut between ranks.
enum class Cuts {
  kElements,  ///< anywhere
  kHeads,     ///< attention between groups of heads, MLPs between hidden features
};

/// What parameters, gradients and arithmetic are in.
enum class Precision { kFloat32, kFloat64, kBFloat16 };  ///< kBFloat16: with fp32 masters

/// One way to train.
struct Candidate {
  Strategy strategy = Strategy::kFullShard;
  UnitCut units = {};
  Cuts cuts = Cuts::kElements;
  bool recompute = false;  ///< blocks are computed again in backward
  int prefetch = 0;        ///< units gathered ahead, in forward and in backward

  bool operator==(const Candidate&) const = default;
};

base::DType compute_dtype(Precision precision);  ///< of gathered parameters and activations
base::DType shard_dtype(Precision precision);    ///< of what is updated

std::string_view to_string(Strategy strategy);
std::string to_string(const UnitCut& units);
std::string_view to_string(Cuts cuts);
std::string_view to_string(Precision precision);

/// What to consider; an empty list stands for all.
struct Choices {
  std::vector<Strategy> strategies = {};
  std::vector<UnitCut> units = {};
  std::vector<Cuts> cuts = {};
  std::optional<bool> recompute = {};
};

/// The value that a flag's text names. Throws base::Error(kUsage) naming the flag and all values.
Strategy parse_strategy(const std::string& text);
UnitCut parse_units(const std::string& text);  ///< halves, blocks, whole, or a number of blocks
Cuts parse_cuts(const std::string& text);
std::optional<bool> parse_recompute(const std::string& text);  ///< off, on; auto: absent
Precision parse_precision(const std::string& text);

/// Every way to train `layers` blocks on `hosts` hosts that `choices` leaves, simplest first.
std::vector<Candidate> candidates(int layers, int hosts, const Choices& choices);

}  // namespace fullshard::planner
