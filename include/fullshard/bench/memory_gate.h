#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

#include "fullshard/base/deadline.h"

namespace fullshard::bench {

/// A folder where processes stop once, after loading their libraries and before they build a model,
/// so that their memory of that moment can be read: each leaves a file PID.pid and goes on when
/// there is a file `go`.
class MemoryGate {
 public:
  /// A new folder in the system's place for temporary files; removed with the object.
  MemoryGate();
  ~MemoryGate();
  MemoryGate(const MemoryGate&) = delete;
  MemoryGate& operator=(const MemoryGate&) = delete;

  const std::string& folder() const { return folder_; }

  /// The processes that have come.
  std::vector<pid_t> arrived() const;

  /// Lets them go on.
  void open() const;

 private:
  std::string folder_;
};

/// The side of a measured process: announces it and waits. Throws base::Error: kFile when the
/// folder cannot be used, kTimeout.
void stop_at_memory_gate(const std::string& folder, base::Duration timeout);

}  // namespace fullshard::bench
