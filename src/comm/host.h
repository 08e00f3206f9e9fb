#pragma once

#include <span>
#include <string>
#include <vector>

#include "fullshard/comm/types.h"

namespace fullshard::comm {

/// Where a rank runs, as far as sharing memory with it goes.
struct Host {
  std::string name;      ///< to show
  std::string identity;  ///< equal for processes that can reach each other's UNIX sockets
};

/// Where this rank runs: the boot and the network namespace of its process, and what `options.host`
/// or the environment's FULLSHARD_HOST says.
Host this_host(const CommOptions& options = {});

/// One text for the exchange, and back.
std::string to_text(const Host& host);
Host host_from_text(const std::string& text);

/// Empty when all ranks' hosts (by rank) are one; otherwise a sentence saying which rank is where.
std::string describe_if_several(std::span<const Host> hosts);

/// By rank, the number of its host; hosts are numbered in the order of their first ranks.
std::vector<int> number_hosts(std::span<const Host> hosts);

/// What the ranks' hosts allow of what was asked for; never kAuto. Throws base::Error
/// kConfiguration, saying which rank is where, when shared memory was asked for in vain.
BackendChoice choose_backend(BackendChoice wanted, std::span<const Host> hosts);

}  // namespace fullshard::comm
