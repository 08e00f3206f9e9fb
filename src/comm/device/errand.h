#pragma once

#include <functional>
#include <memory>

#include "fullshard/base/deadline.h"

namespace fullshard::comm::device {

/// A call into the software of devices that may never return, on a thread of its own. Whoever has
/// waited long enough leaves it behind.
class Errand {
 public:
  /// `call` keeps all that it uses.
  explicit Errand(std::function<void()> call);

  /// Whether the call has ended, for which it waits this long. Throws what the call threw.
  bool ended_within(base::Duration patience) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fullshard::comm::device
