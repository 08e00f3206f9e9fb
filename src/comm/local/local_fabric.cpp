#include "comm/local/local_fabric.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "comm/shared/pages.h"
#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::local {
namespace {

using base::Error;
using base::ErrorCode;

// Anonymous memory of this process.
class AnonymousSegment final : public SharedSegment {
 public:
  AnonymousSegment(std::size_t bytes, std::string_view purpose)
      : size_(bytes), mapped_(shared::round_up_to_pages(bytes == 0 ? 1 : bytes)) {
    void* data = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(ErrorCode::kSystem, fmt::format("cannot map {} bytes of memory for {}: {}", bytes,
                                                  purpose, std::strerror(errno)));
    }
    data_ = static_cast<std::byte*>(data);
  }
  ~AnonymousSegment() override { munmap(data_, mapped_); }
  AnonymousSegment(const AnonymousSegment&) = delete;
  AnonymousSegment& operator=(const AnonymousSegment&) = delete;

  std::byte* data() override { return data_; }
  std::size_t size() const override { return size_; }

  void discard(std::size_t offset, std::size_t bytes) override {
    const shared::PageRange pages = shared::whole_pages(offset, bytes, size_);
    if (pages.bytes == 0) return;
    FULLSHARD_CHECK_EQ(madvise(data_ + pages.offset, pages.bytes, MADV_DONTNEED), 0);
  }

 private:
  std::size_t size_;
  std::size_t mapped_;
  std::byte* data_ = nullptr;
};

}  // namespace

std::shared_ptr<SharedSegment> LocalFabric::create(std::size_t bytes, std::string_view purpose) {
  return std::make_shared<AnonymousSegment>(bytes, purpose);
}

shared::Ticket LocalFabric::offer(const std::shared_ptr<SharedSegment>& segment,
                                  std::span<const int> receivers) {
  const std::lock_guard lock(mutex_);
  const shared::Ticket ticket = ++last_ticket_;
  if (!receivers.empty()) offers_[ticket] = {segment, receivers.size()};
  return ticket;
}

std::shared_ptr<SharedSegment> LocalFabric::take(shared::Ticket ticket, std::size_t bytes,
                                                 std::string_view /*purpose*/) {
  const std::lock_guard lock(mutex_);
  const auto offer = offers_.find(ticket);
  FULLSHARD_CHECK(offer != offers_.end());
  FULLSHARD_CHECK_EQ(offer->second.segment->size(), bytes);
  auto segment = offer->second.segment;
  if (--offer->second.receivers_left == 0) offers_.erase(offer);
  return segment;
}

std::optional<std::string> LocalFabric::death_of(int /*rank*/) { return std::nullopt; }

}  // namespace fullshard::comm::local
