#pragma once

#include <sys/types.h>

#include "launcher/fd.h"

namespace fullshard::launcher {

/// A small process that outlives a launcher which was killed, and then kills the process groups it
/// was told to watch: the parent-death signal reaches ranks but not what ranks started.
class Warden {
 public:
  Warden();
  ~Warden();
  Warden(const Warden&) = delete;
  Warden& operator=(const Warden&) = delete;

  void watch(pid_t group) { tell(group); }

  /// Call before the group's leader is reaped: its number may then belong to someone else.
  void forget(pid_t group) { tell(-group); }

 private:
  void tell(pid_t message);

  Pipe pipe_;
  pid_t pid_ = -1;
};

}  // namespace fullshard::launcher
