#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace fullshard::models {

/// Shape of a residual network for images (He et al. 2015). The defaults are ResNet-18 for
/// ImageNet.
struct ResnetOptions {
  std::vector<std::int64_t> blocks = {2, 2, 2, 2};  ///< of each stage; stages halve the image
  bool bottleneck = false;       ///< blocks of three convolutions, four times as wide at their end
  std::int64_t width = 64;       ///< channels of the first stage; each later one has twice as many
  std::int64_t in_channels = 3;  ///< of the images
  std::int64_t n_classes = 1000;
  /// The stem for images such as CIFAR's: one 3x3 convolution that keeps their size. Off: 7x7 of
  /// stride 2, and pooling.
  bool small_images = false;
};

/// The options of ResNet-`depth`: 18 and 34 have plain blocks, 50 has bottlenecks. Throws
/// kInvalidArgument for any other depth.
ResnetOptions resnet_of_depth(std::int64_t depth);

/// Throws kInvalidArgument naming the field that cannot be used.
void validate(const ResnetOptions& options);

/// Makes the normalisation of so many channels: a module of [batch, channels, height, width].
using NormLayer = std::function<torch::nn::AnyModule(std::int64_t channels)>;

/// torch::nn::BatchNorm2d. Over ranks each normalises by the statistics of its own images;
/// shard::SyncBatchNorm, made here instead, by those of all.
torch::nn::AnyModule batch_norm(std::int64_t channels);

/// relu(convolutions(x) + shortcut(x)). A shortcut that changes the shape is a 1x1 convolution.
class ResnetBlockImpl : public torch::nn::Module {
 public:
  /// From `in` channels to `width`, four times that with bottlenecks.
  ResnetBlockImpl(const ResnetOptions& options, const NormLayer& norm, std::int64_t in,
                  std::int64_t width, std::int64_t stride);

  /// [batch, in, height, width] -> [batch, out, height / stride, width / stride], rounded up.
  at::Tensor forward(const at::Tensor& x);

 private:
  void add(const NormLayer& norm, std::int64_t in, std::int64_t out, std::int64_t kernel,
           std::int64_t stride);

  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::AnyModule> norms_;
  torch::nn::Conv2d shortcut_{nullptr};
  torch::nn::AnyModule shortcut_norm_;
};
TORCH_MODULE(ResnetBlock);

/// The network. A plain module whose parameters have torchvision's names (layer1.0.conv1.weight,
/// layer2.0.downsample.1.bias, fc.weight) and its initial values: convolutions normal with variance
/// 2 / (out channels * kernel elements), unit norms, torch's default for the classifier; drawn from
/// torch's default generator in a fixed order.
class ResnetImpl : public torch::nn::Module {
 public:
  explicit ResnetImpl(const ResnetOptions& options, const NormLayer& norm = batch_norm);

  /// images [batch, in_channels, height, width] -> logits [batch, n_classes].
  at::Tensor forward(const at::Tensor& images);

  /// Mean cross-entropy of classes [batch] int64 in nats an image, a scalar.
  at::Tensor loss(const at::Tensor& images, const at::Tensor& classes);

  const ResnetOptions& options() const { return options_; }

  torch::nn::Conv2d conv1{nullptr};
  torch::nn::AnyModule bn1;
  std::vector<torch::nn::Sequential> stages;  ///< layer1, layer2, ...
  torch::nn::Linear fc{nullptr};

 private:
  torch::nn::Sequential make_stage(std::size_t stage, std::int64_t& channels,
                                   const NormLayer& norm) const;
  void initialise();

  ResnetOptions options_;
};
TORCH_MODULE(Resnet);

/// Parameters of a Resnet of this shape with batch_norm.
std::int64_t parameter_count(const ResnetOptions& options);

}  // namespace fullshard::models
