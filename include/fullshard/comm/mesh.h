#pragma once

#include <memory>
#include <string_view>

#include "fullshard/comm/group.h"

namespace fullshard::comm {

/// How many ranks hold one set of parameters together, and how many sets there are.
struct MeshOptions {
  int replicate = 1;  ///< sets of parameters; more means more memory, and gathers among fewer ranks
  int shard = 0;      ///< ranks a set; 0: all ranks divided by `replicate`
};

/// How the ranks of a job are arranged: parameters are sharded over `shard` and replicated over
/// `replicate`. A plain job has one shard group of all ranks and replicate groups of one.
/// Value type; copies refer to the same groups.
struct Mesh {
  std::shared_ptr<Group> shard;      ///< ranks that share one set of parameters
  std::shared_ptr<Group> replicate;  ///< ranks that hold the same shard
  std::shared_ptr<Group> all;        ///< both together: every rank

  /// The group of an axis by its name: "shard", "replicate" or "all". Throws base::Error
  /// kInvalidArgument for another name.
  const std::shared_ptr<Group>& axis(std::string_view name) const;
};

}  // namespace fullshard::comm
