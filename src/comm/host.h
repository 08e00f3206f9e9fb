#pragma once

#include <span>
#include <string>

#include "fullshard/comm/types.h"

namespace fullshard::comm {

/// Where a rank runs, as far as sharing memory with it goes.
struct Host {
  std::string name;      ///< to show
  std::string identity;  ///< equal for processes that can reach each other's UNIX sockets
};

/// This process's host: its boot and its network namespace.
Host this_host();

/// One text for the exchange, and back.
std::string to_text(const Host& host);
Host host_from_text(const std::string& text);

/// Empty when all ranks' hosts (by rank) are one; otherwise a sentence saying which rank is where.
std::string describe_if_several(std::span<const Host> hosts);

/// What the ranks' hosts allow of what was asked for; never kAuto. Throws base::Error
/// kConfiguration, saying which rank is where, when shared memory was asked for in vain.
BackendChoice choose_backend(BackendChoice wanted, std::span<const Host> hosts);

}  // namespace fullshard::comm
