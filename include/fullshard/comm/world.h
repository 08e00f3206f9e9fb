#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fullshard/comm/flight_record.h"
#include "fullshard/comm/mesh.h"

namespace fullshard::comm {

namespace trace {
class Recorder;
}

/// All ranks of a job, as one of them sees it. Value type; copies refer to the same job.
/// With one rank every collective is an identity, so user code never asks whether it is
/// distributed. The groups of a world end together: what a rank learns in one of them, that another
/// rank is lost, stuck or in a different call, fails the others as well.
class World {
 public:
  /// Joins the world this process was launched into; see comm/init.h. It lies in libfullshard.so,
  /// because it needs libtorch's store, which the rest of this room does not.
  static World init(const CommOptions& options = {});

  /// A world whose ranks are those of `group`, which a backend made; `self` is a group of this rank
  /// alone. Both record what they do in `recorder`.
  World(std::shared_ptr<Group> group, std::shared_ptr<Group> self,
        std::shared_ptr<trace::Recorder> recorder, int local_rank, int local_size);

  /// The ranks of `world` with other groups, which are made of its groups.
  World(const World& world, std::shared_ptr<Group> group, std::shared_ptr<Group> self);

  int rank() const { return mesh_.all->rank(); }
  int size() const { return mesh_.all->size(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  Group& group() const { return *mesh_.all; }

  /// All ranks as one shard group.
  const Mesh& mesh() const { return mesh_; }

  /// Collective. Ranks [k * shard, (k + 1) * shard) form the k-th shard group. Throws
  /// base::Error(kInvalidArgument) when replicate times shard is not the number of ranks.
  Mesh mesh(const MeshOptions& options) const;

  /// The last operations of this rank in all groups, about 1,000 of them. Any thread, also while
  /// another one is inside an operation.
  FlightRecord flight_record() const;

  /// Writes the flight record to flight_rank<rank>.json in `folder`, which is made if need be, and
  /// returns the file's name; replaces an earlier file of that name. `reason` is kept in it. Any
  /// thread. Throws base::Error kFile.
  std::string write_flight_record(const std::string& folder, std::string_view reason) const;

 private:
  friend class FlightSignal;

  Mesh mesh_;
  std::shared_ptr<trace::Recorder> recorder_;
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
