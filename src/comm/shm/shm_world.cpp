#include <fmt/format.h>

#include <utility>

#include "comm/local/local_world.h"
#include "comm/shared/arguments.h"
#include "comm/shared/session.h"
#include "comm/shared/shared_group.h"
#include "comm/shm/bootstrap.h"
#include "comm/shm/shm_fabric.h"
#include "fullshard/base/error.h"
#include "fullshard/comm/shm.h"

namespace fullshard::comm {

World make_shm_world(int rank, int size, int local_rank, Exchange& exchange,
                     const CommOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("rank {} of {} ranks does not exist", rank, size));
  }
  shared::check_options(options);
  shm::Joined joined = shm::join(rank, size, exchange, options);
  const auto trace = trace::GroupTrace::of_world(rank, size, options);
  auto fabric = std::make_shared<shm::ShmFabric>(rank, std::move(joined.peers),
                                                 std::move(joined.inbox), options.timeout);
  auto session =
      std::make_shared<shared::Session>(joined.control, rank, trace, std::move(fabric), options);
  auto group = std::make_shared<shared::SharedGroup>(std::move(session));
  group->barrier({"joining the world", -1});
  return World(std::move(group), local::make_single_group(trace->self(), options),
               trace->recorder(), local_rank, size);
}

}  // namespace fullshard::comm
