#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>

#include "fullshard/comm/group.h"

namespace fullshard::shard {

/// Batch normalisation over the rows of all ranks of a group: in training, mean and variance are
/// those of one process that had every rank's rows, whatever each rank's number of them (also
/// none). Takes the place of BatchNorm1d, 2d and 3d: inputs [rows, features, ...], the same
/// options, parameters and buffers, so their saved values fit. The running statistics are equal on
/// all ranks. In evaluation nothing is exchanged.
///
/// Each training forward is one collective of 2 * features + 1 numbers, and its backward one of
/// 2 * features: all ranks of the group run them equally often and in the same order, on the thread
/// that owns the group. Make the group the one over which gradients are averaged, normally
/// `world.mesh().all`. Gradients of weight and bias are this rank's part, as those of any other
/// parameter. Not differentiable twice.
///
/// Throws base::Error(kInvalidArgument) when the input does not fit, or all ranks together have a
/// single value a feature, of which there is no variance.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, std::shared_ptr<comm::Group> group);

  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  at::Tensor forward_over_ranks(const at::Tensor& input, double momentum);
  double count_batch();

  std::shared_ptr<comm::Group> group_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace fullshard::shard
