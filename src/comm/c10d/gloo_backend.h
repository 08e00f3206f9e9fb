#pragma once

#include <string>

#include "comm/c10d/c10d_group.h"

namespace fullshard::comm::c10d {

/// Connects ranks through Gloo over TCP, each listening at its `address`. All groups of the rank
/// share one network thread. Throws base::Error kConfiguration when one cannot listen there.
ConnectRanks gloo_over_tcp(const std::string& address);

}  // namespace fullshard::comm::c10d
