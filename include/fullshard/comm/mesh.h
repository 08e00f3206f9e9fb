#pragma once

#include <memory>

#include "fullshard/comm/group.h"

namespace fullshard::comm {

/// How the ranks of a job are arranged: parameters are sharded over `shard` and replicated over
/// `replicate`. A plain job has one shard group of all ranks and replicate groups of one.
/// Value type; copies refer to the same groups.
struct Mesh {
  std::shared_ptr<Group> shard;      ///< ranks that share one set of parameters
  std::shared_ptr<Group> replicate;  ///< ranks that hold the same shard
};

}  // namespace fullshard::comm
