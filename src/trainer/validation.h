#pragma once

#include <functional>
#include <optional>

#include "fullshard/comm/group.h"
#include "fullshard/data/validation.h"
#include "fullshard/models/gpt.h"

namespace fullshard::trainer {

/// What validation came to.
struct ValidationOutcome {
  /// Mean over the whole set, nats a token; absent when stopped.
  std::optional<double> loss = std::nullopt;
  int stop_signal = 0;
};

/// Mean loss over the whole validation set, each rank running its part, without gradients.
/// Collective; the same on every rank. `stop_signal` is asked between batches, and may be null.
ValidationOutcome validate(models::Gpt& model, const data::ValidationSet& set, comm::Group& group,
                           const std::function<int()>& stop_signal);

}  // namespace fullshard::trainer
