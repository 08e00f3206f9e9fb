#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <array>
#include <vector>

#include "fullshard/recompute/checkpoint.h"

namespace fullshard::recompute {

/// States of random generators.
class RandomState {
 public:
  /// As it is now, of the default generators of the CPU and of the tensors' devices.
  explicit RandomState(const Tensors& tensors);

  /// Puts the generators back to where they were.
  void restore() const;

  /// The same generators as they are now.
  RandomState now() const;

 private:
  struct Entry {
    at::Generator generator;
    at::Tensor state;
  };
  RandomState() = default;
  void add(at::Generator generator);
  std::vector<Entry> entries_;
};

/// What autocast does in this thread.
struct AutocastState {
  struct OfDevice {
    bool enabled;
    at::ScalarType dtype;
  };
  std::array<OfDevice, 2> devices;  // CPU, CUDA
  bool cache;

  static AutocastState now();
  void apply() const;
};

/// While it lives, autocast is as in `state`, but remembers no casts: one of a parameter that was
/// made outside the region would not be part of the region when that runs again.
class AutocastScope {
 public:
  explicit AutocastScope(AutocastState state);
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope() { before_.apply(); }

 private:
  AutocastState before_ = AutocastState::now();
};

/// While it lives, random numbers are drawn as from `state` on; afterwards as if nothing had been
/// drawn. A null `state` changes nothing.
class RandomScope {
 public:
  explicit RandomScope(const RandomState* state);
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
  ~RandomScope();

 private:
  std::vector<RandomState> before_;  // at most one
};

}  // namespace fullshard::recompute
