#pragma once

#include <functional>
#include <memory>

#include "fullshard/comm/mesh.h"

namespace fullshard::comm {

/// All ranks of a job, as one of them sees it. Value type; copies refer to the same job.
/// With one rank every collective is an identity, so user code never asks whether it is distributed.
class World {
 public:
  /// Joins the world this process was launched into; see comm/init.h. It lies in libfullshard.so,
  /// because it needs libtorch's store, which the rest of this room does not.
  static World init(const CommOptions& options = {});

  /// A world over groups that a backend made.
  World(Mesh mesh, int local_rank, int local_size);

  int rank() const { return mesh_.shard->rank(); }
  int size() const { return mesh_.shard->size(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  Group& group() const { return *mesh_.shard; }
  const Mesh& mesh() const { return mesh_; }

 private:
  Mesh mesh_;
  int local_rank_;
  int local_size_;
};

/// A world of this process alone.
World single_rank(const CommOptions& options = {});

/// Runs `body` on `size` threads, each a rank of one world, and returns when all have ended.
/// A rank that throws aborts the others; the first rank's own exception is rethrown here.
void run_as_threads(int size, const std::function<void(World&)>& body,
                    const CommOptions& options = {});

}  // namespace fullshard::comm
