#pragma once

#include <string_view>

namespace fullshard::residency {

class PagedStorage;

/// What an operator is about to do with a paged tensor.
enum class Access { kRead, kWrite };

/// Whoever owns paged storages. Called in the thread that runs the operator, before it runs.
class Pager {
 public:
  virtual ~Pager() = default;

  /// Makes the storage's memory present, or throws; the exception reaches the user's code, through
  /// the autograd engine if need be. `op` is the operator's name, for instance "aten::addmm".
  virtual void on_access(PagedStorage& storage, Access access, std::string_view op) = 0;
};

}  // namespace fullshard::residency
