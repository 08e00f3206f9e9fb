#include "fullshard/comm/world.h"

#include <utility>

#include "fullshard/base/check.h"

namespace fullshard::comm {

World::World(Mesh mesh, int local_rank, int local_size)
    : mesh_(std::move(mesh)), local_rank_(local_rank), local_size_(local_size) {
  FULLSHARD_CHECK(mesh_.shard != nullptr);
  FULLSHARD_CHECK(mesh_.replicate != nullptr);
}

}  // namespace fullshard::comm
