#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "fullshard/comm/world.h"
#include "fullshard/config/train_config.h"

namespace fullshard::trainer {

/// Where a run shows itself, and how it learns that it should stop. The defaults suit a program
/// that only wants the result: nothing is printed and nothing stops the run.
struct RunContext {
  /// Gets the text for people; only rank 0 writes to it. Must outlive the call. Null = silent.
  std::ostream* out = nullptr;
  /// Whether `out` is a terminal that a status line can be redrawn on (metrics.progress = auto).
  bool terminal = false;
  bool colour = false;
  /// Width of that terminal; asked at each redraw, because it can change. Null = 80.
  std::function<int()> columns = nullptr;
  /// Number of the signal that asks this rank to stop, 0 while none does. Asked on the rank's own
  /// thread once a step, and in validation and generation. Null = never. One rank's word stops all.
  std::function<int()> stop_signal = nullptr;
};

/// What a run came to; the same on every rank.
struct TrainResult {
  std::int64_t steps = 0;  ///< completed
  int stop_signal = 0;     ///< why it ended before training.steps; 0 = it did not

  /// By step: mean loss of the whole global batch in nats a byte, and the norm of its gradient
  /// before clipping.
  std::vector<double> losses;
  std::vector<double> grad_norms;

  std::optional<double> validation_loss;  ///< the last one measured, nats a byte
  std::string generated;                  ///< the bytes after generation.prompt, raw
};

/// Trains a model as `config` says, on this rank. Collective: every rank of `world` calls it with
/// an equal configuration, from one thread a rank; ranks may be threads of one process. With
/// job.threads_per_rank above 0 the calling thread's number of computing threads is set to that.
///
/// The loss curve depends on the configuration and, but for rounding, not on the number of ranks;
/// two runs of equal configuration and ranks give the same bits.
///
/// Throws base::Error: kConfiguration for values that do not fit together or the text, kFile for
/// text that cannot be read and a metrics file that cannot be written, kInvalidArgument when the
/// loss stops being a finite number. A rank that throws leaves the others waiting: the caller
/// then calls world.group().abort(), as comm::run_as_threads does by itself.
TrainResult train(const config::TrainConfig& config, comm::World& world,
                  const RunContext& context = {});

}  // namespace fullshard::trainer
