#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace fullshard::shard {

/// What a model computes and communicates in while its shards, that is, what the optimizer updates,
/// what is clipped and what is saved, keep the dtype that its parameters had before it was sharded,
/// usually fp32. For floating-point parameters and buffers; others stay as they are. Names and
/// meaning follow PyTorch FSDP.
struct MixedPrecision {
  /// What parameters are gathered in, what operators see and what autograd makes gradients in.
  /// kBFloat16 halves the bytes of gathers and of whole units; each rank keeps its shard twice, in
  /// both dtypes. Absent: as they are.
  std::optional<at::ScalarType> param_dtype = {};

  /// What gradients travel in where ranks send messages. Where they share memory, gradients are
  /// read as autograd made them, unless a communication hook replaces that.
  /// Wherever they are added up that is done in fp32 or better, and a shard's gradient is of the
  /// shard's dtype. What passes without gradient sync leave is added up in that, too. Absent:
  /// param_dtype; kFloat costs twice the bytes of kBFloat16 and rounds gradients once less.
  std::optional<at::ScalarType> reduce_dtype = {};

  /// What floating-point buffers are converted to, for good, when the model is sharded. Absent: as
  /// they are, so that running statistics and tables lose nothing.
  std::optional<at::ScalarType> buffer_dtype = {};

  /// Products, convolutions, recurrent layers and layer, group and RMS normalisations that use a
  /// sharded parameter, so none that a rule leaves alone, get their
  /// other floating-point operands in that parameter's dtype, so that fp32 inputs meet bf16
  /// weights, and a layer that a rule keeps in fp32 computes in fp32. Operators that promote types
  /// by themselves are left alone. TorchScript differentiates parts of its graphs itself and does
  /// not see such conversions: give a script module inputs, and by buffer_dtype buffers, of
  /// param_dtype. Off, the model's code sees to it.
  bool cast_forward_inputs = true;

  /// Parameters and buffers in modules of these classes are left as they are. What normalises
  /// by running statistics is here because those are wanted in fp32, which its weights have to
  /// share.
  std::vector<std::string> module_classes_to_ignore = {
      "BatchNorm1dImpl",    "BatchNorm2dImpl",    "BatchNorm3dImpl",    "SyncBatchNormImpl",
      "BatchNorm1d",        "BatchNorm2d",        "BatchNorm3d",        "SyncBatchNorm",
      "InstanceNorm1dImpl", "InstanceNorm2dImpl", "InstanceNorm3dImpl", "InstanceNorm1d",
      "InstanceNorm2d",     "InstanceNorm3d"};
};

}  // namespace fullshard::shard
