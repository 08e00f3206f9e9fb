#pragma once

#include <csignal>

#include "launcher/fd.h"

namespace fullshard::launcher {

/// Takes the signals that a job is to hear of out of their usual way for its lifetime: they can be
/// read from a descriptor instead, but for those that the caller ignores, as under nohup. Exits of
/// children can be waited for even where the caller ignores them.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Becomes readable when a signal is waiting.
  int fd() const { return fd_.get(); }

  /// Next waiting signal, 0 when there is none.
  int next();

  /// Mask from before the scope, which children start with.
  const sigset_t& outer_mask() const { return outer_; }

 private:
  sigset_t outer_;
  struct sigaction outer_child_;
  Fd fd_;
};

}  // namespace fullshard::launcher
