#include "comm/device_ranks.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>

#include "comm/gloo_jobs.h"
#include "comm/ranks.h"
#include "comm/staged_group.h"
#include "fullshard/comm/mixed.h"

namespace fullshard::comm::testing {
namespace {

std::vector<int> everyone(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::shared_ptr<Hub> StandIns::join(const rendezvous::Store& store, int rank) {
  if (rank == 0) {
    const std::lock_guard lock(mutex_);
    hubs_.push_back(std::make_shared<Hub>());
    store.set("hub", std::to_string(hubs_.size() - 1));
  }
  const auto number = std::stoul(store.get("hub", std::chrono::minutes(1)));
  const std::lock_guard lock(mutex_);
  return hubs_.at(number);
}

Hub& StandIns::hub(std::size_t n) {
  const std::lock_guard lock(mutex_);
  return *hubs_.at(n);
}

std::shared_ptr<Group> StandIns::make_group(World& world) {
  const auto connect = [this](const rendezvous::Store& store, int rank, int size, c10::Device,
                              base::Duration) -> c10::intrusive_ptr<::c10d::Backend> {
    return c10::make_intrusive<ThreadsBackend>(join(store, rank), rank, size);
  };
  return make_device_group(world, store_, connect);
}

std::shared_ptr<Group> make_device_group(World& world, const rendezvous::Store& store,
                                         const c10d::ConnectDevices& connect) {
  return std::make_shared<c10d::DeviceGroup>(world.group().subgroup(everyone(world)), store,
                                             connect, c10::Device(c10::kCPU));
}

void run_hosts_as_threads(const std::vector<int>& hosts, const std::function<void(World&)>& body,
                          const CommOptions& options) {
  const auto store = rendezvous::Store::in_memory();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world = join_hosts(rank, hosts, store, options);
        body(world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

std::vector<Backend> backends() {
  return {Backend::kDeviceStandIn, Backend::kDeviceHostsStandIn, Backend::kMixedStandIn};
}

void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options) {
  ASSERT_NE(backend, Backend::kNccl) << "this test program has only stand-ins";
  StandIns stand_ins;
  const auto run = [&](World& host) {
    const auto staged = [&](std::shared_ptr<Group> group) {
      return std::make_shared<StagedGroup>(std::move(group), at::Device(at::kCPU), 0);
    };
    auto devices = stand_ins.make_group(host);
    if (backend == Backend::kMixedStandIn) {
      devices = make_mixed_group(host.mesh().all, std::move(devices));
    }
    World world(host, staged(std::move(devices)), host.mesh().replicate);
    body(world);
  };
  if (backend == Backend::kDeviceHostsStandIn) {
    return run_hosts_as_threads(hosts_of(backend, size), run, options);
  }
  try {
    run_as_threads(size, run, options);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

void run_ranks_but(int, Backend, int, const std::function<void(World&)>&, const CommOptions&) {
  FAIL() << "ranks that are threads do not die one by one";
}

}  // namespace fullshard::comm::testing
