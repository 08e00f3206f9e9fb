#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/local/local_world.h"
#include "comm/shared/arguments.h"
#include "comm/shared/session.h"
#include "comm/shared/shared_group.h"
#include "comm/shm/bootstrap.h"
#include "comm/shm/shm_fabric.h"
#include "comm/shm/shm_group.h"
#include "fullshard/base/error.h"
#include "fullshard/comm/shm.h"

namespace fullshard::comm {
namespace {

// A fabric speaks in the world's numbers.
std::vector<shm::Peer> by_world_rank(std::vector<shm::Peer> peers,
                                     const std::vector<int>& members) {
  std::vector<shm::Peer> placed(
      static_cast<std::size_t>(*std::max_element(members.begin(), members.end())) + 1);
  for (std::size_t i = 0; i < members.size(); ++i) {
    placed[static_cast<std::size_t>(members[i])] = std::move(peers[i]);
  }
  return placed;
}

}  // namespace

std::shared_ptr<Group> shm::make_shm_group(int rank, std::shared_ptr<trace::GroupTrace> trace,
                                           Exchange& exchange, const CommOptions& options) {
  const std::vector<int>& members = trace->ranks();
  Joined joined = join(rank, static_cast<int>(members.size()), exchange, options);
  auto fabric = std::make_shared<ShmFabric>(members[static_cast<std::size_t>(rank)],
                                            by_world_rank(std::move(joined.peers), members),
                                            std::move(joined.inbox), options.timeout);
  auto session = std::make_shared<shared::Session>(joined.control, rank, std::move(trace),
                                                   std::move(fabric), options);
  auto group = std::make_shared<shared::SharedGroup>(std::move(session));
  group->barrier({"joining the world", -1});
  return group;
}

World make_shm_world(int rank, int size, int local_rank, Exchange& exchange,
                     const CommOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("rank {} of {} ranks does not exist", rank, size));
  }
  shared::check_options(options);
  const auto trace = trace::GroupTrace::of_world(rank, size, options);
  return World(shm::make_shm_group(rank, trace, exchange, options),
               local::make_single_group(trace->self(), options), trace->recorder(), local_rank,
               size);
}

}  // namespace fullshard::comm
