#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace fullshard::recompute {

/// How a region is run.
struct CheckpointOptions {
  /// The region sees the same random numbers both times, from the default generators of the CPU and
  /// of its inputs' devices. false saves their state, 5 KB for the CPU, where a region draws none.
  /// Ranks that are threads share one generator, so that they cannot draw the same twice.
  bool preserve_rng_state = true;
};

using Tensors = std::vector<at::Tensor>;

/// Activation checkpointing: runs `region(inputs)` and forgets everything between its inputs and
/// its outputs; backward runs the region a second time to have it again. What is kept in between is
/// the inputs, the outputs and whatever `region` captured.
///
/// Gradients are those of the region run plainly, also second-order ones and those of parameters,
/// views and tensors that it captured; as in torch.utils.checkpoint(use_reentrant=False) hooks run
/// once, inputs need no gradient, and without gradients this is a plain call. Hooks that the region
/// itself registers on inputs, parameters or captured tensors are registered twice and run twice.
///
/// The region runs again later, so it must
///   - own what it uses: capture by value, modules by their shared pointer or holder;
///   - do the same both times: other outputs, or parameters and older tensors that it did not use
///     the first time, throw base::Error(kMisuse) out of backward; so do leaf tensors with
///     gradients that it makes itself. State that it changes, as BatchNorm's running statistics, it
///     changes twice;
///   - leave its inputs and what it captured as they are, and so must everybody until backward.
///     Changed inputs and parameters are kMisuse, and so is a captured tensor into which the region
///     writes a result with gradients. Not noticed, and WRONG gradients: other captured tensors
///     that change, and an optimizer step of a sharded model between a forward and its backward,
///     which runs the region again with the new parameters.
/// The thread that runs the region must make its graph: what other threads add to that meanwhile
/// counts as older, so that it is kMisuse the second time.
///
/// An output that is an input or another older tensor is returned itself, one that is a view of
/// such a tensor as a copy. Outputs that share memory with each other must not be written to.
Tensors checkpoint_tensors(std::function<Tensors(const Tensors&)> region, Tensors inputs,
                           const CheckpointOptions& options = {});

/// What a region is given for an argument of type `Input`.
template <class Input>
using InputTensor = const at::Tensor&;

template <class Region, class... Inputs>
concept RegionOver = (std::convertible_to<Inputs, at::Tensor> && ...) &&
                     std::invocable<Region&, InputTensor<Inputs>...>;

/// The same for a region that takes its inputs one by one, and returns a tensor or Tensors:
///   h = checkpoint([block](const at::Tensor& x) { return block->forward(x); }, h);
template <class Region, class... Inputs>
requires RegionOver<Region, Inputs...>
auto checkpoint(const CheckpointOptions& options, Region region, const Inputs&... inputs) {
  using Result = std::invoke_result_t<Region&, InputTensor<Inputs>...>;
  constexpr bool kSeveral = std::convertible_to<Result, Tensors>;
  auto run = [region = std::move(region)](const Tensors& tensors) mutable -> Tensors {
    const auto call = [&]<std::size_t... I>(std::index_sequence<I...>)->Result {
      return region(tensors[I]...);
    };
    if constexpr (kSeveral) {
      return call(std::index_sequence_for<Inputs...>());
    } else {
      return {call(std::index_sequence_for<Inputs...>())};
    }
  };
  Tensors outputs = checkpoint_tensors(std::move(run), {at::Tensor(inputs)...}, options);
  if constexpr (kSeveral) {
    return outputs;
  } else {
    return at::Tensor(std::move(outputs.front()));
  }
}

template <class Region, class... Inputs>
requires RegionOver<Region, Inputs...>
auto checkpoint(Region region, const Inputs&... inputs) {
  return checkpoint(CheckpointOptions{}, std::move(region), inputs...);
}

}  // namespace fullshard::recompute
