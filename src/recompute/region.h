#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "fullshard/recompute/checkpoint.h"
#include "recompute/surroundings.h"

namespace fullshard::recompute {

/// A region with its inputs and all that decides what it computes, so that it can run again.
class Region {
 public:
  Region(std::function<Tensors(const Tensors&)> run, Tensors inputs,
         const CheckpointOptions& options);

  /// Runs it with gradients, as things are now.
  Tensors run_first() const;

  /// Runs it with gradients, with random numbers and autocast as they were when this was made.
  Tensors run_again() const;

  /// Throws base::Error(kMisuse) where an input was changed since this was made.
  void require_unchanged() const;

  const Tensors& inputs() const { return inputs_; }

 private:
  Tensors run(const RandomState* random) const;

  std::function<Tensors(const Tensors&)> run_;
  Tensors inputs_;
  std::vector<std::int64_t> versions_;  // of the inputs
  AutocastState autocast_ = AutocastState::now();
  std::optional<RandomState> random_;
};

/// How often the tensor was changed in place; 0 for tensors that do not count it.
std::int64_t version_of(const at::Tensor& tensor);

/// Throws base::Error(kMisuse).
[[noreturn]] void reject(std::string_view problem);

}  // namespace fullshard::recompute
