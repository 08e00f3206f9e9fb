#include "comm/local/local_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/local_fabric.h"
#include "comm/shared/session.h"
#include "comm/shared/shared_group.h"
#include "fullshard/base/error.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;

// Keeps what the ranks threw, in the order of its coming, until all of them have ended.
class Exceptions {
 public:
  void record(std::exception_ptr error, bool echo) {
    const std::lock_guard lock(mutex_);
    thrown_.push_back({std::move(error), echo});
  }

  /// Throws the one that started the trouble: the first that is not merely the echo of another
  /// rank's end. After all threads have ended.
  void rethrow_cause() const {
    if (thrown_.empty()) return;
    const auto cause = std::find_if(thrown_.begin(), thrown_.end(),
                                    [](const Thrown& thrown) { return !thrown.echo; });
    std::rethrow_exception(cause == thrown_.end() ? thrown_.front().error : cause->error);
  }

 private:
  struct Thrown {
    std::exception_ptr error;
    bool echo;
  };

  std::mutex mutex_;  // guards what follows
  std::vector<Thrown> thrown_;
};

void run_rank(World world, const std::function<void(World&)>& body, Exceptions& exceptions) {
  const int rank = world.rank();
  try {
    body(world);
  } catch (const Error& error) {
    exceptions.record(std::current_exception(),
                      error.code() == ErrorCode::kPeerLost && error.rank() != rank);
    world.group().abort(error.what());
  } catch (const std::exception& error) {
    exceptions.record(std::current_exception(), false);
    world.group().abort(error.what());
  } catch (...) {
    exceptions.record(std::current_exception(), false);
    world.group().abort("an exception that is no std::exception");
  }
}

}  // namespace

std::shared_ptr<Group> local::make_single_group(std::shared_ptr<trace::GroupTrace> trace,
                                                const CommOptions& options) {
  const auto fabric = std::make_shared<LocalFabric>();
  auto session = std::make_shared<shared::Session>(shared::make_control_block(*fabric, 1, options),
                                                   0, std::move(trace), fabric, options);
  return std::make_shared<shared::SharedGroup>(std::move(session));
}

std::vector<World> local::make_local_worlds(int size, const CommOptions& options) {
  if (size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a world of {} ranks was asked for", size));
  }
  const auto fabric = std::make_shared<LocalFabric>();
  const auto memory = shared::make_control_block(*fabric, size, options);
  std::vector<World> worlds;
  for (int rank = 0; rank < size; ++rank) {
    const auto trace = trace::GroupTrace::of_world(rank, size, options);
    auto session = std::make_shared<shared::Session>(memory, rank, trace, fabric, options);
    worlds.emplace_back(std::make_shared<shared::SharedGroup>(std::move(session)),
                        make_single_group(trace->self(), options), trace->recorder(), rank, size);
  }
  return worlds;
}

World single_rank(const CommOptions& options) {
  return local::make_local_worlds(1, options).front();
}

void run_as_threads(int size, const std::function<void(World&)>& body, const CommOptions& options) {
  std::vector<World> worlds = local::make_local_worlds(size, options);
  Exceptions exceptions;
  std::vector<std::jthread> threads;
  try {
    while (!worlds.empty()) {
      threads.emplace_back(run_rank, std::move(worlds.back()), std::cref(body),
                           std::ref(exceptions));
      worlds.pop_back();
    }
  } catch (const std::system_error& error) {
    const std::size_t started = threads.size();
    worlds.clear();  // the ranks that never started leave, so that the others end
    threads.clear();
    throw Error(ErrorCode::kSystem, fmt::format("only {} of {} threads could be started: {}",
                                                started, size, error.what()));
  }
  threads.clear();
  exceptions.rethrow_cause();
}

}  // namespace fullshard::comm
