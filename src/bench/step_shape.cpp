#include "fullshard/bench/step_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "bench/refuse.h"

namespace fullshard::bench {
namespace {

using NamedShapes = std::vector<std::pair<std::string, StepShape>>;

struct Model {
  std::string name;
  std::vector<std::string> sizes;
  NamedShapes shapes;
  std::string usual;  ///< the name of the shape that is measured unless another is named
};

Model gpt() {
  const StepShape large{.layers = 12, .dim = 768, .heads = 12, .vocab = 50304, .seq = 256};
  StepShape short_ones = large;
  short_ones.seq = 128;
  short_ones.batch = 1;
  const StepShape small{.layers = 6, .dim = 384, .heads = 6, .vocab = 256, .seq = 256, .batch = 4};
  return {"gpt",
          {"layers", "dim", "heads", "vocab", "seq", "batch"},
          {{"a", large}, {"b", short_ones}, {"c", small}},
          "c"};
}

Model bert() {
  StepShape base{.model = "bert", .vocab = 30522, .seq = 128, .batch = 4};
  StepShape small = base;
  small.layers = 6;
  small.dim = 384;
  small.heads = 6;
  return {"bert",
          {"layers", "dim", "heads", "vocab", "seq", "batch"},
          {{"small", small}, {"base", base}},
          "small"};
}

Model resnet() {
  const StepShape small{.model = "resnet", .layers = 18, .image = 32, .classes = 10, .batch = 16};
  const StepShape large{.model = "resnet", .layers = 50, .batch = 4};
  return {"resnet", {"layers", "image", "classes", "batch"}, {{"18", small}, {"50", large}}, "18"};
}

Model vit() {
  const StepShape base{.model = "vit"};
  const StepShape small{
      .model = "vit", .layers = 6, .dim = 384, .image = 64, .patch = 8, .classes = 100, .batch = 8};
  return {"vit",
          {"layers", "dim", "heads", "image", "patch", "classes", "batch"},
          {{"small", small}, {"base", base}},
          "small"};
}

const std::vector<Model>& models() {
  static const std::vector<Model> kModels = {gpt(), resnet(), bert(), vit()};
  return kModels;
}

const Model& model_of(std::string_view name) {
  for (const Model& model : models()) {
    if (model.name == name) return model;
  }
  refuse(fmt::format("--model: found \"{}\"; expected one of {}", name,
                     fmt::join(model_names(), ", ")));
}

bool has(const Model& model, std::string_view size) {
  return std::ranges::find(model.sizes, size) != model.sizes.end();
}

void require_divisor(const char* flag, std::int64_t value, const char* of, std::int64_t whole) {
  if (whole % value == 0) return;
  refuse(fmt::format("--{}: found {}; expected a divisor of --{} {}", flag, value, of, whole));
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  return names;
}

const std::vector<ShapeSize>& shape_sizes() {
  static const std::vector<ShapeSize> kSizes = {
      {"layers", &StepShape::layers}, {"dim", &StepShape::dim},
      {"heads", &StepShape::heads},   {"vocab", &StepShape::vocab},
      {"seq", &StepShape::seq},       {"image", &StepShape::image},
      {"patch", &StepShape::patch},   {"classes", &StepShape::classes},
      {"batch", &StepShape::batch}};
  return kSizes;
}

std::vector<ShapeSize> sizes_of(std::string_view model) {
  std::vector<ShapeSize> sizes;
  for (const ShapeSize& size : shape_sizes()) {
    if (has(model_of(model), size.name)) sizes.push_back(size);
  }
  return sizes;
}

std::string usual_shape(std::string_view model) { return model_of(model).usual; }

StepShape named_shape(std::string_view model, std::string_view name) {
  for (const auto& [known, shape] : model_of(model).shapes) {
    if (known == name) return shape;
  }
  refuse(fmt::format("--shape: found \"{}\"; expected one of {}", name,
                     fmt::join(shape_names(model), ", ")));
}

std::vector<std::string> shape_names(std::string_view model) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : model_of(model).shapes) names.push_back(name);
  return names;
}

void validate(const StepShape& shape) {
  constexpr std::int64_t kLarge = 1 << 24;
  const Model& model = model_of(shape.model);
  for (const ShapeSize& size : sizes_of(shape.model)) {
    require_between(size.name, shape.*size.field, 1, kLarge);
  }
  if (has(model, "heads")) require_divisor("heads", shape.heads, "dim", shape.dim);
  if (has(model, "patch")) require_divisor("patch", shape.patch, "image", shape.image);
  if (shape.model != "resnet") return;
  constexpr std::int64_t kDepths[] = {18, 34, 50};
  if (std::ranges::find(kDepths, shape.layers) != std::end(kDepths)) return;
  refuse(fmt::format("--layers: found {}; expected 18, 34 or 50 for a resnet", shape.layers));
}

const char* counted(const StepShape& shape) {
  return has(model_of(shape.model), "seq") ? "tokens" : "images";
}

std::int64_t counted_per_row(const StepShape& shape) {
  return has(model_of(shape.model), "seq") ? shape.seq : 1;
}

}  // namespace fullshard::bench
