#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace fullshard::comm::shared {

/// A range of whole pages, in bytes from the start of a mapping.
struct PageRange {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

inline std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

inline std::size_t round_up_to_pages(std::size_t bytes) {
  return (bytes + page_size() - 1) / page_size() * page_size();
}

/// The pages that lie wholly inside [offset, offset + bytes) of a segment of `size` bytes. The rest
/// of the last page belongs to the segment.
inline PageRange whole_pages(std::size_t offset, std::size_t bytes, std::size_t size) {
  const std::size_t begin = round_up_to_pages(offset);
  const std::size_t end = std::min(offset + bytes, size);
  const std::size_t whole_end =
      end == size ? round_up_to_pages(end) : end / page_size() * page_size();
  return {begin, whole_end > begin ? whole_end - begin : 0};
}

}  // namespace fullshard::comm::shared
