#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "comm/shm/unique_fd.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::shm {

/// Memory without a name in the file system, that processes share by passing its descriptor. Its
/// size is sealed, so no process can make it fault for another by shrinking it.
class MemfdSegment final : public SharedSegment {
 public:
  /// New zeroed memory. Throws kSystem naming `purpose` and the size.
  static std::shared_ptr<MemfdSegment> create(std::size_t bytes, std::string_view purpose);

  /// Maps memory that another rank created with the same size.
  static std::shared_ptr<MemfdSegment> attach(UniqueFd fd, std::size_t bytes,
                                              std::string_view purpose);

  MemfdSegment(UniqueFd fd, std::size_t bytes, std::string_view purpose);
  ~MemfdSegment() override;
  MemfdSegment(const MemfdSegment&) = delete;
  MemfdSegment& operator=(const MemfdSegment&) = delete;

  std::byte* data() override { return data_; }
  std::size_t size() const override { return size_; }
  void discard(std::size_t offset, std::size_t bytes) override;

  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::size_t size_;
  std::size_t mapped_;
  std::byte* data_ = nullptr;
};

}  // namespace fullshard::comm::shm
