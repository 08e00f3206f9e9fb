#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace fullshard::residency {

/// Notices where backward passes begin and end, without module hooks: code that runs inside one
/// calls note(). A pass inside another one, as where activations are recomputed, belongs to the
/// outer one if that has been noted. One object belongs to one rank's thread.
class BackwardWatch {
 public:
  struct Events {
    /// A new pass was noted.
    std::function<void()> begin;
    /// Once in the thread that called backward, after the last node of a pass that was noted; its
    /// exception reaches the caller of backward.
    std::function<void()> end;
    /// A new pass is about to be noted although the previous one never ended, because it threw.
    std::function<void()> abandoned;
  };

  explicit BackwardWatch(Events events) : events_(std::move(events)) {}

  /// Whether this thread is inside a backward pass; registers the pass when it is new.
  bool note();

  /// Whether a pass that was noted goes on, in whatever thread.
  bool is_inside() const;

 private:
  Events events_;
  int task_ = -1;  // the autograd engine's id of the pass noted last, -1 outside
  std::shared_ptr<char> token_ = std::make_shared<char>();  // that pass has a copy in the engine
};

}  // namespace fullshard::residency
