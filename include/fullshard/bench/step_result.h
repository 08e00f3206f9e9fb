#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fullshard::bench {

/// For how long a unit's gathers and reductions kept ranks from computing.
struct UnitExposure {
  std::string name;
  double seconds = 0;  ///< a step: mean over ranks and measured steps
};

/// What the counters of the sharding engine said over the measured steps; the largest of all ranks.
struct StepCounters {
  double exposed_seconds = 0;    ///< a step: time in which a rank waited for others or reduced
  double reduction_seconds = 0;  ///< a step: the part of it in which a rank added gradients up
  std::int64_t peak_unsharded_bytes = 0;           ///< a rank
  std::int64_t peak_unreduced_gradient_bytes = 0;  ///< a rank
  /// Of parameters, that each rank owns, in the order of ranks. Its gradients take as much, and
  /// AdamW's state twice as much.
  std::vector<std::int64_t> owned_bytes;
  std::vector<UnitExposure> units;  ///< in the engine's order
};

/// What only our own runs tell; peers are not asked.
struct StepDetails {
  std::vector<double> losses;            ///< of every step, warm-up included; whole batch
  std::vector<double> step_seconds;      ///< of every step, warm-up included
  double grad_norm = 0;                  ///< of the warm-up step
  std::int64_t parameters = 0;           ///< elements of the whole model
  std::string torch;                     ///< version
  std::optional<StepCounters> counters;  ///< of a sharded run
};

/// What one run tells, as one line of JSON on its standard output under the keys that stand beside
/// the fields. Times are medians over the measured steps, in seconds.
struct StepResult {
  double step_seconds = 0;             ///< step_s: until the slowest rank has ended
  double tokens_per_second = 0;        ///< tok_s: of all ranks together; images where the
                                       ///< model takes those
  double loss = 0;                     ///< loss: mean over the global batch, last step
  double forward_seconds = 0;          ///< fwd; 0 when not told
  double backward_seconds = 0;         ///< bwd; 0 when not told
  double optimizer_seconds = 0;        ///< opt: zero_grad included; 0 when not told
  std::optional<StepDetails> details;  ///< details
};

/// One line, without the line's end.
std::string to_json(const StepResult& result);

/// The result on the last line of `output` that is a JSON object with tok_s; other lines may say
/// anything. Throws base::Error(kSystem) that names `source` and what is missing.
StepResult parse_step_result(std::string_view output, std::string_view source);

/// Largest relative difference between two runs of the same steps: of any step's loss, and of the
/// warm-up step's gradient norm. The norm is compared because AdamW hides a gradient that is wrong
/// by a factor. Throws base::Error(kInternal) naming what differs by more than `tolerance`.
double verify_same_training(const StepDetails& plain, const StepDetails& sharded, double tolerance);

}  // namespace fullshard::bench
