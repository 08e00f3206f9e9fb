#include "fullshard/comm/world.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "comm/fate.h"
#include "comm/trace/recorder.h"
#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::comm {
namespace {

// Of the groups {first, first + stride, ...} of `length` ranks, the one that holds this rank.
std::shared_ptr<Group> own_group(Group& all, int groups, int first_step, int stride, int length) {
  std::shared_ptr<Group> own;
  for (int g = 0; g < groups; ++g) {
    std::vector<int> ranks(static_cast<std::size_t>(length));
    int rank = g * first_step;
    for (int& member : ranks) {
      member = rank;
      rank += stride;
    }
    if (auto group = all.subgroup(ranks)) own = std::move(group);
  }
  return own;
}

}  // namespace

World::World(std::shared_ptr<Group> group, std::shared_ptr<Group> self,
             std::shared_ptr<trace::Recorder> recorder, int local_rank, int local_size)
    : mesh_{nullptr, std::move(self), nullptr},
      recorder_(std::move(recorder)),
      local_rank_(local_rank),
      local_size_(local_size) {
  FULLSHARD_CHECK(group != nullptr);
  if (group->size() > 1) group = std::make_shared<Fate>()->bind(group);
  mesh_.shard = group;
  mesh_.all = std::move(group);
  FULLSHARD_CHECK(mesh_.replicate != nullptr);
  FULLSHARD_CHECK(recorder_ != nullptr);
}

World::World(const World& world, std::shared_ptr<Group> group, std::shared_ptr<Group> self)
    : World(std::move(group), std::move(self), world.recorder_, world.local_rank_,
            world.local_size_) {}

FlightRecord World::flight_record() const { return recorder_->record(""); }

std::string World::write_flight_record(const std::string& folder, std::string_view reason) const {
  return recorder_->write(folder, reason);
}

const std::shared_ptr<Group>& Mesh::axis(std::string_view name) const {
  if (name == "shard") return shard;
  if (name == "replicate") return replicate;
  if (name == "all") return all;
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    fmt::format("a mesh has no axis '{}'; it has shard, replicate and all", name));
}

Mesh World::mesh(const MeshOptions& options) const {
  const int replicate = options.replicate;
  const int shard = options.shard == 0 && replicate > 0 ? size() / replicate : options.shard;
  if (replicate < 1 || shard < 1 || replicate * shard != size()) {
    throw base::Error(
        base::ErrorCode::kInvalidArgument,
        fmt::format(
            "a mesh of replicate {} x shard {} does not fit {} ranks; their product must be "
            "the number of ranks",
            replicate, options.shard, size()));
  }
  if (replicate == 1) return mesh_;
  return {own_group(*mesh_.all, replicate, shard, 1, shard),
          own_group(*mesh_.all, shard, 1, shard, replicate), mesh_.all};
}

}  // namespace fullshard::comm
