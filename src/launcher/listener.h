#pragma once

#include <cstdint>

#include "launcher/fd.h"

namespace fullshard::launcher {

/// A listening socket, so that the port is this job's before any rank has started.
struct Listener {
  Fd socket;
  std::uint16_t port;
};

/// Listens on 127.0.0.1:`port`, on any free port when that is 0. Throws base::Error(kSystem) naming
/// the port.
Listener listen_on(std::uint16_t port);

}  // namespace fullshard::launcher
