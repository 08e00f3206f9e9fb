#pragma once

#include <gtest/gtest.h>

#include <csignal>

#include "comm/errors.h"
#include "fullshard/comm/world.h"

namespace fullshard::comm::testing {

/// What one of four ranks does in a mesh of two replicas, of which rank 3 dies. Rank 0 shares no
/// group with rank 3 but the world's, and hears of its death all the same.
inline void expect_death_named_in_all_groups(World& world) {
  const Mesh mesh = world.mesh({.replicate = 2});
  const base::Error error = expect_error(base::ErrorCode::kPeerLost, [&] {
    world.group().barrier({});
    if (world.rank() == 3) raise(SIGKILL);
    while (true) {
      mesh.shard->barrier({"blocks.0", 1});
      mesh.replicate->barrier({"blocks.0", 1});
    }
  });
  EXPECT_EQ(error.rank(), 3) << error.what();
}

}  // namespace fullshard::comm::testing
