#include "fullshard/comm/c10d/gpus.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/c10d/device_group.h"
#include "comm/c10d/join_gpus.h"
#include "comm/device/driver.h"
#include "comm/device/placement.h"
#include "comm/device/plugin_library.h"
#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "fullshard/comm/mixed.h"
#include "rendezvous/c10d_store.h"

namespace fullshard::comm {
namespace {

using base::Error;
using base::ErrorCode;

c10::intrusive_ptr<::c10d::Backend> connect_nccl(const device::Plugin& plugin,
                                                 const rendezvous::Store& store, int rank, int size,
                                                 c10::Device device, base::Duration timeout) {
  const auto shared_store = rendezvous::StoreAccess::c10d_store(store);
  // Longer than the group's own deadline, which comes first.
  const auto longest = std::min<base::Duration>(timeout, std::chrono::hours(24 * 365)) * 2;
  std::string why;
  void* backend = plugin.connect_nccl(
      shared_store.get(), rank, size, device.index(),
      std::chrono::duration_cast<std::chrono::milliseconds>(longest).count(), why);
  if (backend == nullptr) {
    throw Error(ErrorCode::kSystem,
                fmt::format("NCCL cannot connect {} GPUs, this rank's being {}: {}", size,
                            device.str(), why));
  }
  return c10::intrusive_ptr<::c10d::Backend>::reclaim(static_cast<::c10d::Backend*>(backend));
}

std::shared_ptr<Group> everyone(Group& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.subgroup(ranks);
}

GpuWorld connect(const device::Plugin& plugin, const World& world, const rendezvous::Store& store,
                 std::optional<int> wanted) {
  const int index = c10d::choose_gpu(plugin, world, wanted);
  const c10::Device gpu(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  const auto connect_devices = [&plugin](const rendezvous::Store& keys, int rank, int size,
                                         c10::Device device, base::Duration timeout) {
    return connect_nccl(plugin, keys, rank, size, device, timeout);
  };
  auto all = std::make_shared<c10d::DeviceGroup>(everyone(world.group()), store.with_prefix("nccl"),
                                                 connect_devices, gpu);
  const auto& self = world.mesh().replicate;
  auto alone = std::make_shared<c10d::DeviceGroup>(everyone(*self), store, nullptr, gpu);
  return {World(world, make_mixed_group(world.mesh().all, std::move(all)),
                make_mixed_group(self, std::move(alone))),
          index};
}

// Tells the other ranks what keeps this one from joining them.
template <typename Call>
auto or_abort(const World& world, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    world.group().abort(error.what());
    throw;
  }
}

}  // namespace

int c10d::choose_gpu(const device::Plugin& plugin, const World& world, std::optional<int> wanted) {
  std::string why;
  const int devices = plugin.count_devices(why);
  if (devices == 0) {
    throw Error(ErrorCode::kConfiguration, "no GPU can be used here: " + why);
  }
  if (!wanted) {
    return device::choose_device({world.local_rank(), world.local_size()}, devices,
                                 device::devices_are_restricted());
  }
  if (*wanted >= 0 && *wanted < devices) return *wanted;
  throw Error(
      ErrorCode::kConfiguration,
      fmt::format("GPU {} was asked for, and those visible are 0 to {}", *wanted, devices - 1));
}

GpuWorld c10d::join_gpus(const device::Plugin& plugin, const World& world,
                         const rendezvous::Store& store, std::optional<int> wanted) {
  return or_abort(world, [&] { return connect(plugin, world, store, wanted); });
}

GpuWorld with_gpus(const World& world, const rendezvous::Store& store, std::optional<int> device) {
  const device::Plugin* plugin =
      or_abort(world, [] { return &device::load_plugin(device::plugin_places(), TORCH_VERSION); });
  return c10d::join_gpus(*plugin, world, store, device);
}

bool c10d::all_see_gpus(const World& world, int visible) {
  const std::int64_t own = visible;
  std::vector<std::int64_t> of_ranks(static_cast<std::size_t>(world.size()));
  world.group()
      .all_gather({&own, 1, base::DType::kInt64},
                  {of_ranks.data(), world.size(), base::DType::kInt64}, {}, {"GPUs", -1})
      .wait();
  std::vector<int> without;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (of_ranks[static_cast<std::size_t>(rank)] == 0) without.push_back(rank);
  }
  if (without.empty()) return true;
  if (static_cast<int>(without.size()) == world.size()) return false;
  throw Error(ErrorCode::kConfiguration,
              fmt::format("{} of {} ranks see no GPU, which the others do: {}; give a GPU to each, "
                          "or hide them from all with CUDA_VISIBLE_DEVICES=",
                          without.size(), world.size(), base::name_ranks(without)),
              without.front());
}

GpuWorld with_gpus_if_there(const World& world, const rendezvous::Store& store,
                            std::optional<int> device) {
  if (!c10d::all_see_gpus(world, device::count_gpus())) return {world, kHostMemory};
  return with_gpus(world, store, device);
}

}  // namespace fullshard::comm
