#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fullshard/residency/paged_storage.h"
#include "fullshard/residency/pager.h"
#include "shard/flat_unit.h"

namespace fullshard::shard {

/// Stands as `.grad` of the module's parameters. It holds no memory: what autograd adds to it
/// inside backward goes to `take` instead, and any other use throws an error that says where the
/// gradients are. An optimizer that was given module->parameters() meets it at its first step.
class GradientPlaceholder final : public residency::Pager {
 public:
  /// Both are called with the index that the placeholder was made with. `zero` makes zero all of
  /// the gradient that there is.
  using Take = std::function<void(int index, const at::Tensor& gradient)>;
  using Zero = std::function<void(int index)>;

  GradientPlaceholder(Take take, Zero zero) : take_(std::move(take)), zero_(std::move(zero)) {}

  /// A placeholder for a parameter called `name`, shaped like it.
  at::Tensor make(const std::string& name, const at::Tensor& parameter, int index);

  void on_access(residency::PagedStorage& storage, residency::Access access,
                 std::string_view op) override;
  bool replace(residency::PagedStorage& storage, std::string_view op, std::size_t arguments,
               std::vector<c10::IValue>& stack) override;

  /// Whether the gradient that autograd is now storing as `.grad` was taken already, because it has
  /// a graph and was added out of place; forgets it.
  bool was_taken(int index) { return std::exchange(taken_with_graph_, -1) == index; }

 private:
  Take take_;
  Zero zero_;
  int taken_with_graph_ = -1;
};

}  // namespace fullshard::shard
