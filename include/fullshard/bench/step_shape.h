#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fullshard::bench {

/// What is trained, and the batch that one rank trains on. Sizes that the model does not have
/// (sizes_of) are of no account.
struct StepShape {
  std::string model = "gpt";  ///< one of model_names()
  std::int64_t layers = 12;   ///< of a resnet its depth: 18, 34 or 50
  std::int64_t dim = 768;
  std::int64_t heads = 12;
  std::int64_t vocab = 50304;
  std::int64_t seq = 256;
  std::int64_t image =
      224;                  ///< pixels a side; a resnet on less than 64 has the stem for small ones
  std::int64_t patch = 16;  ///< pixels a side of what is one token to a vit
  std::int64_t classes = 1000;
  std::int64_t batch = 2;  ///< sequences or images a rank
};

/// gpt: with a tied head. bert: learns masked tokens. resnet: in training mode, each rank's batches
/// normalised by their own statistics. vit: with a class token.
std::vector<std::string> model_names();

/// A size, by the name of its flag without dashes.
struct ShapeSize {
  const char* name;
  std::int64_t StepShape::*field;
};

/// All there are, in the order of the fields.
const std::vector<ShapeSize>& shape_sizes();

/// Those that the model has. Throws base::Error(kUsage) for a model that is none of model_names().
std::vector<ShapeSize> sizes_of(std::string_view model);

/// The name of the model's shape that is measured unless another is named.
std::string usual_shape(std::string_view model);

/// A shape of the model by its name. Throws base::Error(kUsage) for a name that is none of its
/// shape_names().
StepShape named_shape(std::string_view model, std::string_view name);

std::vector<std::string> shape_names(std::string_view model);

/// Throws base::Error(kUsage) naming the size that cannot be used and what would be right.
void validate(const StepShape& shape);

/// What a speed counts: "tokens" or "images".
const char* counted(const StepShape& shape);

/// How many of them there are in a row of the batch: a sequence has seq tokens, an image is one.
std::int64_t counted_per_row(const StepShape& shape);

}  // namespace fullshard::bench
