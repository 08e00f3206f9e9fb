#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "fullshard/bench/step_spec.h"

namespace fullshard::bench::measure {

/// Rows, and what is to be predicted of each.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;

  Batch rows(std::int64_t first, std::int64_t count) const {
    return {inputs.narrow(0, first, count), targets.narrow(0, first, count)};
  }
};

/// A model and data made up for it.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Batch&)> loss;  ///< a scalar, the mean over the batch's rows
  std::function<Batch(std::int64_t rows, at::Generator& random)> draw;
  std::int64_t parameters = 0;
  /// Its loss depends on which rows are together: it has BatchNorm, in training mode.
  bool depends_on_batch = false;
};

/// Initial values depend on the spec's shape and the default generator's seed.
Subject make_subject(const StepSpec& spec);

}  // namespace fullshard::bench::measure
