#pragma once

#include <functional>
#include <memory>

namespace fullshard::residency {

/// Notices where backward passes begin and end, without module hooks: code that runs inside one
/// calls note(). A pass inside another one, as where activations are recomputed, belongs to the
/// outer one if that has been noted. One object belongs to one rank's thread.
class BackwardWatch {
 public:
  /// `on_end` runs once in the thread that called backward, after the last node of a pass that was
  /// noted; its exception reaches the caller of backward. `on_abandoned` runs when a new pass is
  /// noted although the previous one never ended, because it threw.
  BackwardWatch(std::function<void()> on_end, std::function<void()> on_abandoned);

  /// Whether this thread is inside a backward pass; registers the pass when it is new.
  bool note();

 private:
  std::function<void()> on_end_;
  std::function<void()> on_abandoned_;
  int task_ = -1;  // the autograd engine's id of the pass noted last, -1 outside
  std::shared_ptr<char> token_ = std::make_shared<char>();  // that pass has a copy in the engine
};

}  // namespace fullshard::residency
