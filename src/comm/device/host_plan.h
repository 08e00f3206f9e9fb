#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/device/plan.h"
#include "comm/host_map.h"

namespace fullshard::comm::device {

// Collectives over the devices of ranks that are on several hosts, several on one: what crosses
// between two hosts crosses once, and every rank of a host carries a share of it. As values; the
// same algorithms as those of hierarchical groups of host memory.

/// Elements of a slice of parts of which the longest has `longest` elements of `element_bytes`
/// bytes: a quarter of it, so that one slice is between the hosts while another is inside, but no
/// slice so short that it is not worth a group of calls, nor longer than `chunk` bytes.
std::int64_t choose_slice(std::int64_t longest, std::size_t element_bytes, std::size_t chunk);

/// The messages of an all_gather, one exchange after the other; offsets are in the whole, in which
/// the own part lies from the beginning. While slices of the parts travel between the hosts, those
/// before them are passed on inside. `step` is the number of elements of a slice.
std::vector<Exchange> plan_all_gather(const shared::Parts& parts, const HostMap& hosts, int rank,
                                      std::int64_t step);

/// What a rank does in one stage of a reduce_scatter, in this order.
struct HostReduceStage {
  Exchange inside;        ///< from the whole to `addends`, between ranks of one host
  Exchange across;        ///< from `sums` to `host_sums`, between hosts
  Sum result;             ///< into the own part; addends by host
  std::vector<Sum> sums;  ///< into `sums`; addends by rank of the host
};

/// A reduce_scatter in slices: the ranks of a host add up what they carry, and the owner of a part
/// adds up the sums of the hosts. The exchanges of a stage may begin while the sums of the stage
/// before it are not yet made. Among addends of a rank's own, that of `sums` lies in the whole and
/// that of `result` in `sums`.
struct HostReducePlan {
  std::int64_t addends = 0;    ///< scratch, in elements
  std::int64_t sums = 0;       ///< likewise
  std::int64_t host_sums = 0;  ///< likewise
  std::vector<HostReduceStage> stages;
};

/// `step` is the number of elements of a slice.
HostReducePlan plan_reduce_scatter(const shared::Parts& parts, const HostMap& hosts, int rank,
                                   std::int64_t step);

}  // namespace fullshard::comm::device
