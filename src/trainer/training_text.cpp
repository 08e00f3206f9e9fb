#include "trainer/training_text.h"

#include <fmt/format.h>

#include "fullshard/base/error.h"
#include "fullshard/data/corpus.h"

namespace fullshard::trainer {
namespace {

void require_a_sequence(std::string_view part, const char* purpose, const char* remedy,
                        const config::TrainConfig& config, std::size_t total) {
  const auto least = static_cast<std::size_t>(config.training.seq_len) + 1;
  if (part.size() >= least) return;
  throw base::Error(
      base::ErrorCode::kConfiguration,
      fmt::format("data.validation_fraction ({}) of a text of {} bytes leaves {} for {}, but a "
                  "sequence of training.seq_len ({}) takes {}; use {}",
                  config.data.validation_fraction, total, part.size(), purpose,
                  config.training.seq_len, least, remedy));
}

}  // namespace

TrainingText load_training_text(const config::TrainConfig& config) {
  const bool from_file = !config.data.path.empty();
  const data::Text text = from_file ? data::load_text_file(config.data.path) : data::load_bible();
  const data::Split parts = data::split(*text, config.data.validation_fraction);
  require_a_sequence(parts.train, "training", "a longer text, or shorter sequences", config,
                     text->size());
  TrainingText result;
  result.name = from_file ? config.data.path : "King James Bible";
  result.train = std::make_shared<data::ByteTokens>(text, parts.train);
  if (!config.validation.enable) return result;
  require_a_sequence(parts.validation, "validation",
                     "a larger fraction, shorter sequences, or validation.enable = false", config,
                     text->size());
  result.validation = std::make_shared<data::ByteTokens>(text, parts.validation);
  return result;
}

}  // namespace fullshard::trainer
