#pragma once

#include <functional>
#include <string>

#include "fullshard/comm/group.h"
#include "fullshard/config/train_config.h"
#include "fullshard/models/gpt.h"

namespace fullshard::trainer {

/// What the model writes after the prompt.
struct Generated {
  std::string text;  ///< raw bytes; fewer than asked for when stopped
  int stop_signal = 0;
};

/// generation.bytes bytes after generation.prompt (after a line break when that is empty), drawn
/// with a generator of its own that training.seed decides. Collective; the same on every rank.
/// `stop_signal` is asked now and then, and may be null.
Generated generate_text(models::Gpt& model, const config::TrainConfig& config, comm::Group& group,
                        const std::function<int()>& stop_signal);

/// For a console: bytes that are not UTF-8 and control characters other than line breaks and tabs
/// become U+FFFD.
std::string printable(std::string_view text);

}  // namespace fullshard::trainer
