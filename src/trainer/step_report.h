#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace fullshard::trainer {

/// What is known of one finished step. Loss and norm are of the whole global batch, peaks the
/// largest of any rank; times and counts are this rank's. The four times make up step_seconds.
struct StepReport {
  std::int64_t step = 0;  ///< from 1
  double loss = 0;        ///< nats a byte
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;  ///< over all ranks

  double step_seconds = 0;          ///< validation not included
  double data_seconds = 0;          ///< waiting for the batch
  double compute_seconds = 0;       ///< forward and backward
  double exposed_comm_seconds = 0;  ///< standing still for other ranks, reducing gradients
  /// Of those, by unit: for its gathers and reductions; waiting to update is no unit's.
  std::map<std::string, double> exposed_by_unit;
  double optimizer_seconds = 0;  ///< norm and update
  double mfu = 0;  ///< model FLOP/s over what all ranks reach together in a matrix product

  std::int64_t peak_unsharded_bytes = 0;  ///< of parameters gathered at once, in this step
  std::int64_t peak_rss_bytes = 0;        ///< of resident memory, since the process began

  // Of this rank in this step.
  std::int64_t all_gathers = 0;           ///< of units
  std::int64_t all_gather_bytes = 0;      ///< received
  std::int64_t reduce_scatters = 0;       ///< of units
  std::int64_t reduce_scatter_bytes = 0;  ///< gradients read from other ranks
  std::int64_t bytes_between_hosts = 0;   ///< sent to ranks on other hosts

  // Of this rank at the step's end.
  std::int64_t live_unsharded_bytes = 0;           ///< parameters gathered
  std::int64_t gradient_bytes = 0;                 ///< reduced gradients
  std::int64_t peak_unreduced_gradient_bytes = 0;  ///< whole gradients, the most in this step
  std::int64_t staging_bytes = 0;                  ///< private whole copies of parameters
  std::int64_t optimizer_state_bytes = 0;

  std::optional<double> validation_loss = std::nullopt;  ///< nats a byte, if measured after it

  double tokens_per_second() const { return static_cast<double>(tokens) / step_seconds; }
};

}  // namespace fullshard::trainer
