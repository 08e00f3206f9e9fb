#pragma once

#include <cstddef>
#include <span>
#include <string_view>
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
  virtual ~Pager() = default;

  /// Called first of all; returning true asks for end_use() when the operator has run. May throw
  /// where another thread is inside an operator, whose memory this one's could take away.
  virtual bool begin_use(PagedStorage& storage, std::string_view op);
  virtual void end_use() noexcept {}

  /// Called before on_access when one operator is given parameters of several units: all operands,
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
};

}  // namespace fullshard::residency
