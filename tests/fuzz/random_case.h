#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fullshard/shard/fully_shard.h"
#include "fuzz/random_net.h"

namespace fullshard::fuzz {

enum class Optimizer { kSgd, kAdam, kAdamW, kRmsProp, kAdagrad, kFusedAdamW };

/// What is done besides training. None of it but kHalve may change the training.
enum class Interlude {
  kNone,
  kEvaluate,          ///< a pass without gradients
  kRecordedEvaluate,  ///< a forward pass with gradients that no backward follows
  kFullState,
  kReload,  ///< load what full_state_dict gave
  kRelease,
  kRead,   ///< an unsharded scope for reading
  kHalve,  ///< halves a parameter in an unsharded scope for writing
};

enum class ZeroGrad { kOptimizer, kOptimizerInPlace, kHandle, kModule };

/// What the ranks are.
enum class Transport {
  kThreads,  ///< of one memory
  kGloo,     ///< without shared memory
  kHosts     ///< on two hosts, each with half of the ranks, which share memory there
};

/// How the units are chosen.
struct WrapSpec {
  enum class Kind {
    kRoot,
    kAutomatic,
    kSize,
    kNamed,
    kClasses,
    kBlocks,
    kGroups
  } kind = Kind::kAutomatic;
  std::int64_t min_params = 0;
  std::vector<std::string> modules;
  std::vector<std::string> classes;
};

struct FreezeSpec {
  std::string pattern;      ///< of parameter names
  std::int64_t thawed = 0;  ///< trainable from this step on
};

/// One whole training run. Everything follows from the seed.
struct Case {
  std::uint64_t seed = 0;
  NetSpec net;
  int ranks = 1;
  int replicate = 1;
  WrapSpec wrap;
  shard::FullyShardOptions sharding;  ///< without auto_wrap_policy and max_unsharded_bytes
  double limit = 0;                   ///< max_unsharded_bytes in sizes of the largest unit; 0: none
  Transport transport = Transport::kThreads;
  bool from_float = false;  ///< the model is in single precision; a rule converts it to double
  bool in_float = false;    ///< computes in single precision, with shards in double
  bool moves = false;       ///< other weights after each update
  std::vector<FreezeSpec> freezes;
  Optimizer optimizer = Optimizer::kSgd;
  ZeroGrad zero_grad = ZeroGrad::kOptimizer;
  std::int64_t steps = 3;
  int micro_batches = 1;
  bool deferred = false;  ///< reduce once a step
  double max_norm = 0;    ///< 0: no clipping
  double norm_type = 2;
  std::vector<Interlude> before_update;  ///< one a step, between backward and the optimizer
  std::vector<Interlude> after_update;   ///< one a step
};

Case random_case(std::uint64_t seed);

/// All of it in words, so that a failing case can be rebuilt by hand.
std::string to_string(const Case& run);

shard::WrapPolicy policy_of(const WrapSpec& spec);

}  // namespace fullshard::fuzz
