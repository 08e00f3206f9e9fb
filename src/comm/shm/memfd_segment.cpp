#include "comm/shm/memfd_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "comm/shared/pages.h"
#include "comm/shm/packet.h"
#include "fullshard/base/check.h"
#include "fullshard/base/text.h"

namespace fullshard::comm::shm {
namespace {

std::size_t mapped_size(std::size_t bytes) {
  return shared::round_up_to_pages(bytes == 0 ? 1 : bytes);
}

base::Error refused(std::string_view what, std::size_t bytes, std::string_view purpose) {
  return system_error(fmt::format("{} {} of shared memory for {}", what,
                                  base::format_bytes(static_cast<std::int64_t>(bytes)), purpose));
}

}  // namespace

std::shared_ptr<MemfdSegment> MemfdSegment::create(std::size_t bytes, std::string_view purpose) {
  UniqueFd fd(memfd_create("fullshard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw refused("creating", bytes, purpose);
  if (ftruncate(fd.get(), static_cast<off_t>(mapped_size(bytes))) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw refused("sizing", bytes, purpose);
  }
  return std::make_shared<MemfdSegment>(std::move(fd), bytes, purpose);
}

std::shared_ptr<MemfdSegment> MemfdSegment::attach(UniqueFd fd, std::size_t bytes,
                                                   std::string_view purpose) {
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) throw refused("looking at", bytes, purpose);
  FULLSHARD_CHECK_EQ(static_cast<std::size_t>(status.st_size), mapped_size(bytes));
  return std::make_shared<MemfdSegment>(std::move(fd), bytes, purpose);
}

MemfdSegment::MemfdSegment(UniqueFd fd, std::size_t bytes, std::string_view purpose)
    : fd_(std::move(fd)), size_(bytes), mapped_(mapped_size(bytes)) {
  void* data =
      mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (data == MAP_FAILED) throw refused("mapping", bytes, purpose);
  data_ = static_cast<std::byte*>(data);
  // Where the administrator has set transparent_hugepage/shmem_enabled to "advise"; else in vain.
  madvise(data_, mapped_, MADV_HUGEPAGE);
}

MemfdSegment::~MemfdSegment() { munmap(data_, mapped_); }

void MemfdSegment::discard(std::size_t offset, std::size_t bytes) {
  const shared::PageRange pages = shared::whole_pages(offset, bytes, size_);
  if (pages.bytes == 0) return;
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(pages.offset), static_cast<off_t>(pages.bytes)) != 0) {
    throw refused("giving back", pages.bytes, "other use");
  }
}

}  // namespace fullshard::comm::shm
