#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace c10 {
struct IValue;
}

namespace fullshard::residency {

class PagedStorage;

/// What an operator is about to do with a paged tensor.
enum class Access { kRead, kWrite };

/// Whoever owns paged storages. Called in the thread that runs the operator, before it runs.
class Pager {
 public:
  Pager() = default;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;
  virtual ~Pager() = default;

  /// The calling thread begins to use the pager's tensors, by what `op` names, until as many calls
  /// of leave(). Throws base::Error(kMisuse) while another thread does: it may be computing with
  /// memory that this one would have evicted.
  void enter(const PagedStorage& storage, std::string_view op);
  void leave() noexcept;

  /// Called before on_access, when one operator is given parameters of several units: all operands,
  /// some of which may be another pager's. What on_access brings in for one of them must still be
  /// there when the operator runs.
  virtual void use_together(std::span<PagedStorage* const> operands);

  /// Makes the storage's memory present, or throws; the exception reaches the user's code, through
  /// the autograd engine if need be. `op` is the operator's name, for instance "aten::addmm".
  virtual void on_access(PagedStorage& storage, Access access, std::string_view op) = 0;

  /// Asked first about an operator whose first argument is the paged tensor. Returning true means
  /// that the pager has done the operator's work itself: it has replaced the operator's `arguments`
  /// arguments at the end of `stack` by its results.
  virtual bool replace(PagedStorage& storage, std::string_view op, std::size_t arguments,
                       std::vector<c10::IValue>& stack);

 private:
  std::atomic<std::thread::id> user_ = {};  // the thread that has entered, if any
  int depth_ = 0;                           // of its calls of enter(); only it looks
};

}  // namespace fullshard::residency
