#pragma once

#include <functional>
#include <memory>

namespace fullshard::comm {

/// Handle of a collective that was started. Value type; copies refer to the same operation.
/// Backends that finish inside the call return a Work that is already done.
class Work {
 public:
  /// A finished operation.
  Work() = default;

  /// An operation that `finish` completes; it runs at most once, in the thread of the first wait().
  explicit Work(std::function<void()> finish);

  /// As above, for an operation that goes on by itself: `ready` says whether it has ended well. Any
  /// thread may call it.
  Work(std::function<void()> finish, std::function<bool()> ready);

  /// Returns when the operation is complete. Rethrows the operation's error, each time it is
  /// called.
  void wait();

  /// Whether wait() would return at once and without an error.
  bool done() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fullshard::comm
