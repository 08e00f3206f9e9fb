#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fullshard/launcher/launch.h"

namespace fullshard::launcher {

/// Descriptors whose numbers a rank learns from its environment.
struct RankFds {
  int reports;
  int store;  ///< -1 for every rank but 0
};

/// The whole environment of one rank, as NAME=value: this process's, with what the job says about
/// the rank in place of anything of the same name.
std::vector<std::string> rank_environment(const LaunchOptions& options, int rank,
                                          std::uint16_t port, const RankFds& fds);

}  // namespace fullshard::launcher
