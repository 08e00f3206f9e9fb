#include "fullshard/residency/pager.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>

#include "fullshard/base/error.h"
#include "fullshard/residency/paged_storage.h"

namespace fullshard::residency {

void Pager::enter(const PagedStorage& storage, std::string_view op) {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id user;
  if (user_.load(std::memory_order_relaxed) != self &&
      !user_.compare_exchange_strong(user, self, std::memory_order_acquire)) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} uses parameter '{}' while another thread uses parameters of the same "
                    "sharded model; one thread of a rank may do so at a time",
                    op, storage.name()));
  }
  ++depth_;
}

void Pager::leave() noexcept {
  if (--depth_ == 0) user_.store({}, std::memory_order_release);
}

void Pager::use_together(std::span<PagedStorage* const>) {}

bool Pager::replace(PagedStorage&, std::string_view, std::size_t, std::vector<c10::IValue>&) {
  return false;
}

}  // namespace fullshard::residency
