#include "fullshard/models/resnet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "models/validation.h"

namespace fullshard::models {
namespace {

constexpr const char* kModel = "ResNet";
constexpr std::int64_t kExpansion = 4;  // of a bottleneck
constexpr std::int64_t kStemKernel = 7;
constexpr std::int64_t kMostStages = 8;

std::int64_t expansion(const ResnetOptions& options) { return options.bottleneck ? kExpansion : 1; }

std::int64_t width_of(const ResnetOptions& options, std::size_t stage) {
  return options.width << stage;
}

std::int64_t features(const ResnetOptions& options) {
  return width_of(options, options.blocks.size() - 1) * expansion(options);
}

/// Keeps the image's size but for the stride.
torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// A convolution without bias and the norm behind it.
std::int64_t normed(std::int64_t in, std::int64_t out, std::int64_t kernel) {
  return in * out * kernel * kernel + 2 * out;
}

std::int64_t block_parameters(const ResnetOptions& options, std::int64_t in, std::int64_t width,
                              bool first) {
  const std::int64_t out = width * expansion(options);
  const std::int64_t shortcut = first && in != out ? normed(in, out, 1) : 0;
  if (!options.bottleneck) return normed(in, width, 3) + normed(width, width, 3) + shortcut;
  return normed(in, width, 1) + normed(width, width, 3) + normed(width, out, 1) + shortcut;
}

}  // namespace

ResnetOptions resnet_of_depth(std::int64_t depth) {
  switch (depth) {
    case 18: return {.blocks = {2, 2, 2, 2}};
    case 34: return {.blocks = {3, 4, 6, 3}};
    case 50: return {.blocks = {3, 4, 6, 3}, .bottleneck = true};
    default: reject(fmt::format("there is no ResNet-{} here; the depths are 18, 34 and 50", depth));
  }
}

void validate(const ResnetOptions& options) {
  if (options.blocks.empty() || std::ssize(options.blocks) > kMostStages) {
    reject(fmt::format("ResNet options: blocks must be of 1 to {} stages, not {}", kMostStages,
                       options.blocks.size()));
  }
  for (const std::int64_t blocks : options.blocks) require_positive(kModel, "blocks", blocks);
  require_positive(kModel, "width", options.width);
  require_positive(kModel, "in_channels", options.in_channels);
  require_positive(kModel, "n_classes", options.n_classes);
}

torch::nn::AnyModule batch_norm(std::int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

ResnetBlockImpl::ResnetBlockImpl(const ResnetOptions& options, const NormLayer& norm,
                                 std::int64_t in, std::int64_t width, std::int64_t stride) {
  const std::int64_t out = width * expansion(options);
  if (options.bottleneck) {
    add(norm, in, width, 1, 1);
    add(norm, width, width, 3, stride);
    add(norm, width, out, 1, 1);
  } else {
    add(norm, in, width, 3, stride);
    add(norm, width, out, 3, 1);
  }
  if (stride == 1 && in == out) return;
  shortcut_ = convolution(in, out, 1, stride);
  shortcut_norm_ = norm(out);
  const auto downsample = register_module("downsample", torch::nn::Sequential());
  downsample->push_back(shortcut_);
  downsample->push_back(shortcut_norm_);
}

void ResnetBlockImpl::add(const NormLayer& norm, std::int64_t in, std::int64_t out,
                          std::int64_t kernel, std::int64_t stride) {
  const std::size_t number = convolutions_.size() + 1;
  convolutions_.push_back(
      register_module(fmt::format("conv{}", number), convolution(in, out, kernel, stride)));
  norms_.push_back(norm(out));
  register_module(fmt::format("bn{}", number), norms_.back().ptr());
}

at::Tensor ResnetBlockImpl::forward(const at::Tensor& x) {
  at::Tensor h = x;
  for (std::size_t i = 0; i < convolutions_.size(); ++i) {
    if (i > 0) h = at::relu(h);
    h = norms_[i].forward(convolutions_[i]->forward(h));
  }
  const at::Tensor kept = shortcut_ ? shortcut_norm_.forward(shortcut_->forward(x)) : x;
  return at::relu(h + kept);
}

ResnetImpl::ResnetImpl(const ResnetOptions& options, const NormLayer& norm) : options_(options) {
  validate(options);
  conv1 = register_module("conv1", options.small_images
                                       ? convolution(options.in_channels, options.width, 3, 1)
                                       : convolution(options.in_channels, options.width, 7, 2));
  bn1 = norm(options.width);
  register_module("bn1", bn1.ptr());
  std::int64_t channels = options.width;
  for (std::size_t stage = 0; stage < options.blocks.size(); ++stage) {
    stages.push_back(
        register_module(fmt::format("layer{}", stage + 1), make_stage(stage, channels, norm)));
  }
  fc = register_module("fc", torch::nn::Linear(channels, options.n_classes));
  initialise();
}

torch::nn::Sequential ResnetImpl::make_stage(std::size_t stage, std::int64_t& channels,
                                             const NormLayer& norm) const {
  const std::int64_t width = width_of(options_, stage);
  torch::nn::Sequential blocks;
  for (std::int64_t i = 0; i < options_.blocks[stage]; ++i) {
    const std::int64_t stride = i == 0 && stage > 0 ? 2 : 1;
    blocks->push_back(ResnetBlock(options_, norm, channels, width, stride));
    channels = width * expansion(options_);
  }
  return blocks;
}

void ResnetImpl::initialise() {
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* convolution = module->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(convolution->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
    }
  }
}

at::Tensor ResnetImpl::forward(const at::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != options_.in_channels) {
    reject(fmt::format("ResNet takes images [batch, {}, height, width], not [{}]",
                       options_.in_channels, fmt::join(images.sizes(), ", ")));
  }
  at::Tensor x = at::relu(bn1.forward(conv1->forward(images)));
  if (!options_.small_images) {
    x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  }
  for (torch::nn::Sequential& stage : stages) x = stage->forward(x);
  return fc->forward(x.mean({2, 3}));
}

at::Tensor ResnetImpl::loss(const at::Tensor& images, const at::Tensor& classes) {
  return at::cross_entropy_loss(forward(images), classes);
}

std::int64_t parameter_count(const ResnetOptions& options) {
  std::int64_t count =
      normed(options.in_channels, options.width, options.small_images ? 3 : kStemKernel);
  std::int64_t channels = options.width;
  for (std::size_t stage = 0; stage < options.blocks.size(); ++stage) {
    const std::int64_t width = width_of(options, stage);
    for (std::int64_t i = 0; i < options.blocks[stage]; ++i) {
      count += block_parameters(options, channels, width, i == 0);
      channels = width * expansion(options);
    }
  }
  return count + (features(options) + 1) * options.n_classes;
}

}  // namespace fullshard::models
