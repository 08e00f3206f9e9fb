#pragma once

#include <memory>
#include <string>

#include "fullshard/config/train_config.h"
#include "fullshard/data/token_source.h"

namespace fullshard::trainer {

/// The text of a run, cut in two.
struct TrainingText {
  std::string name;  ///< for people
  std::shared_ptr<const data::TokenSource> train;
  std::shared_ptr<const data::TokenSource> validation;  ///< null when validation is off
};

/// Reads the text that `config` names. Local. Throws base::Error: kFile when it cannot be read,
/// kConfiguration when a part of it is too short for one sequence, naming the fields to change.
TrainingText load_training_text(const config::TrainConfig& config);

}  // namespace fullshard::trainer
