#include <utility>

#include "comm/c10d/device_collectives.h"
#include "comm/device/host_plan.h"
#include "comm/sums.h"

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using device::HostReducePlan;
using device::HostReduceStage;
using shared::Parts;

class HierarchicalDeviceCollectives final : public DeviceCollectives {
 public:
  using DeviceCollectives::DeviceCollectives;

  void all_gather(ConstBuffer mine, Buffer all, const Parts& parts) override;
  void reduce_scatter(ConstBuffer all, Buffer mine, const Parts& parts, ReduceOp op) override;

 private:
  std::int64_t slice(const Parts& parts, DType dtype) const {
    return device::choose_slice(parts.longest, base::size_of(dtype), chunk());
  }
};

void HierarchicalDeviceCollectives::all_gather(ConstBuffer mine, Buffer all, const Parts& parts) {
  const int rank = messages().rank();
  messages().copy(mine, 0, all, parts.offsets[static_cast<std::size_t>(rank)], mine.count);
  const std::int64_t step = slice(parts, all.dtype);
  for (const auto& exchange : device::plan_all_gather(parts, messages().hosts(), rank, step)) {
    DeviceMessages::wait(messages().start({{exchange, all, all}}));
  }
}

void HierarchicalDeviceCollectives::reduce_scatter(ConstBuffer all, Buffer mine, const Parts& parts,
                                                   ReduceOp op) {
  const HostMap& hosts = messages().hosts();
  const int rank = messages().rank();
  const DType wire = type_of_sums(all.dtype, op);
  const ReduceOp op_here = op == ReduceOp::kMean ? ReduceOp::kSum : op;
  const HostReducePlan plan =
      device::plan_reduce_scatter(parts, hosts, rank, slice(parts, all.dtype));
  const Scratch addends(messages(), plan.addends, all.dtype, all.device);
  const Scratch sums(messages(), plan.sums, wire, all.device);
  const Scratch host_sums(messages(), plan.host_sums, wire, all.device);
  const auto start = [&](std::size_t stage) {
    if (stage >= plan.stages.size()) return DeviceMessages::Started();
    return messages().start({{plan.stages[stage].inside, all, addends.buffer},
                             {plan.stages[stage].across, sums.buffer, host_sums.buffer}});
  };
  DeviceMessages::Started now = start(0);
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    DeviceMessages::Started next = start(stage + 1);
    DeviceMessages::wait(now);
    const HostReduceStage& here = plan.stages[stage];
    add_up(here.result, hosts.host_of(rank), sums.buffer, host_sums.buffer, mine, op,
           messages().size());
    for (const device::Sum& sum : here.sums) {
      add_up(sum, hosts.local(rank), all, addends.buffer, sums.buffer, op_here, 1);
    }
    now = std::move(next);
  }
}

}  // namespace

std::unique_ptr<DeviceCollectives> make_hierarchical_device_collectives(DeviceMessages& messages,
                                                                        std::size_t chunk) {
  return std::make_unique<HierarchicalDeviceCollectives>(messages, chunk);
}

}  // namespace fullshard::comm::c10d
