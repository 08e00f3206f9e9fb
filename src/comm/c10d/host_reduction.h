#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/c10d/collectives.h"
#include "comm/host_map.h"

namespace fullshard::comm::c10d {

/// The reduce-scatter of ranks on several hosts: the ranks of a host add up what they have through
/// memory that they share, each what it carries; the sums go to the owners of the parts, which add
/// up those of all hosts. It goes in rounds, and while the messages of one are on their way the
/// next is added up.
class HostReduction {
 public:
  /// Collective over `inside`. `hosts` and `inside` stay with the caller.
  HostReduction(Seat seat, const HostMap& hosts, Group& inside, std::size_t chunk);

  void run(Call call, const void* all, void* mine, const shared::Parts& parts, base::DType dtype,
           ReduceOp op);

 private:
  struct Operation;

  std::byte* area(int local, std::int64_t round) const;

  Seat seat_;
  const HostMap& hosts_;
  int here_;
  Group& inside_;
  std::size_t area_bytes_;
  std::unique_ptr<SharedSegment> staging_;  // two areas for each rank of the host; null for one
};

}  // namespace fullshard::comm::c10d
