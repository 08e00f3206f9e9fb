#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace fullshard::residency {

/// Gives an operator that does not promote types by itself (products, convolutions, recurrent
/// layers, normalisations) all its floating-point tensors in the dtype of the first paged one among
/// its arguments, which are the last of `stack`. Paged tensors, and those that the operator writes
/// to, are left as they are, and so are other operators, backward ones among them. Gradients flow
/// through the conversion.
void cast_operands(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

}  // namespace fullshard::residency
