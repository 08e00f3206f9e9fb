#pragma once

#include "fullshard/comm/types.h"
#include "fullshard/comm/world.h"
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm {

/// Joins a world of `size` ranks on any hosts that reach each other over TCP, as rank `rank`. Every
/// rank calls it, with a store that reaches the same keys, at most once a prefix of the store;
/// returns when all ranks have joined. The store is used again only by Group::subgroup.
///
/// Local ranks are counted by the ranks' hosts. Rank 0's options.staging holds for all. A warning
/// says which address this rank uses when the host's name would have led to another.
///
/// Threads of a rank: for each group one that does its operations, one that keeps their deadlines,
/// and one for every other rank, asleep; and one for the network. SIGPIPE is kept from them.
///
/// Throws base::Error: kInvalidArgument for a rank that is none; kMismatch when a rank comes twice
/// or for a world of another size; kTimeout naming the ranks that have not come within
/// options.timeout; kConfiguration for an interface that this host does not have.
World make_gloo_world(int rank, int size, const rendezvous::Store& store,
                      const CommOptions& options = {});

/// The same for ranks of which some may be on one host: those share memory, and its groups use that
/// as far as it goes. A group on one host is one of shared memory (Group::shares_memory()); one
/// over several hosts moves data inside each by shared memory and between them over TCP, where
/// every rank of a host carries its share. Hosts are told apart by their boot and network
/// namespace, and by CommOptions::host. Throws also what make_shm_world() does.
World make_hosts_world(int rank, int size, const rendezvous::Store& store,
                       const CommOptions& options = {});

}  // namespace fullshard::comm
