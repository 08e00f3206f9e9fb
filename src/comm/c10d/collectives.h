#pragma once

#include <cstddef>
#include <memory>

#include "comm/c10d/algorithms.h"
#include "comm/c10d/transfer.h"
#include "comm/host_map.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::c10d {

/// One operation that has been greeted: all ranks are in it, with arguments that fit.
struct Call {
  Transfer& transfer;
  const OpTag& tag;
};

/// How a group moves data. Called on the group's lane, one operation after the other.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual void all_gather(Call call, const void* mine, void* all, const shared::Parts& parts,
                          base::DType dtype) = 0;
  virtual void reduce_scatter(Call call, const void* all, void* mine, const shared::Parts& parts,
                              base::DType dtype, ReduceOp op) = 0;
  virtual void all_reduce(Call call, Buffer inout, ReduceOp op) = 0;
  virtual void broadcast(Call call, Buffer inout, int root) = 0;
  virtual void all_to_all(Call call, const void* send, const shared::Parts& send_parts, void* recv,
                          const shared::Parts& recv_parts, base::DType dtype) = 0;
};

/// By messages between every two ranks. `chunk` is how many bytes a rank receives at a time from
/// each other one while it reduces.
std::unique_ptr<Collectives> make_flat_collectives(Seat seat, std::size_t chunk);

/// Shared memory inside each host and messages between hosts, of which every rank of a host carries
/// its share. `inside` is the group of this host's ranks in their order; it is used by nobody else
/// while an operation goes on. Collective over `inside`.
///
/// Sums run over the ranks of each host in order and then over the hosts in order, fp16 and bf16 in
/// fp32 all the way; so their bits depend on the arrangement of hosts, and on nothing else.
std::unique_ptr<Collectives> make_hierarchical_collectives(Seat seat, HostMap hosts,
                                                           std::shared_ptr<Group> inside,
                                                           std::size_t chunk);

}  // namespace fullshard::comm::c10d
