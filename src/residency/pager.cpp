#include "fullshard/residency/pager.h"

#include <ATen/core/ivalue.h>

namespace fullshard::residency {

bool Pager::begin_use(PagedStorage&, std::string_view) { return false; }

void Pager::use_together(std::span<PagedStorage* const>) {}

bool Pager::replace(PagedStorage&, std::string_view, std::size_t, std::vector<c10::IValue>&) {
  return false;
}

}  // namespace fullshard::residency
