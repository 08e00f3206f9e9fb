#include <algorithm>
#include <utility>
#include <vector>

#include "comm/c10d/device_collectives.h"

namespace fullshard::comm::c10d {
namespace {

using shared::bytes_of;
using shared::Parts;

// Up to these many bytes a rank it is quicker to have everything everywhere and add it up there.
constexpr std::size_t kSmallReduction = std::size_t{256} << 10;

class FlatDeviceCollectives final : public DeviceCollectives {
 public:
  using DeviceCollectives::DeviceCollectives;

  void all_gather(ConstBuffer mine, Buffer all, const Parts& parts) override;
  void reduce_scatter(ConstBuffer all, Buffer mine, const Parts& parts, ReduceOp op) override;
  void all_reduce(Buffer inout, ReduceOp op) override;

 private:
  void reduce_whole(Buffer inout, ReduceOp op);
};

void FlatDeviceCollectives::all_gather(ConstBuffer mine, Buffer all, const Parts& parts) {
  // What the backend's own call sends to other hosts is known only where all ranks are alike.
  const HostMap& hosts = messages().hosts();
  const bool may_use_one_call =
      !messages().alone() && (hosts.hosts() == 1 || !hosts.any_together());
  const device::GatherPlan plan =
      device::plan_all_gather(parts, messages().rank(), may_use_one_call);
  if (plan.one_call) return messages().all_gather_equal(mine, all);
  const auto started = messages().start({{plan.exchange, mine, all}});
  messages().copy(mine, 0, all, parts.offsets[static_cast<std::size_t>(messages().rank())],
                  mine.count);
  DeviceMessages::wait(started);
}

void FlatDeviceCollectives::reduce_scatter(ConstBuffer all, Buffer mine, const Parts& parts,
                                           ReduceOp op) {
  const auto step =
      static_cast<std::int64_t>(std::max<std::size_t>(chunk() / base::size_of(all.dtype), 1));
  const device::ReducePlan plan = device::plan_reduce_scatter(parts, messages().rank(), step);
  const Scratch scratch(messages(), plan.scratch, all.dtype, all.device);
  const ConstBuffer received = scratch.buffer;
  DeviceMessages::Started now;
  if (!plan.rounds.empty()) {
    now = messages().start({{plan.rounds.front().exchange, all, received}});
  }
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    DeviceMessages::Started next;
    if (r + 1 < plan.rounds.size()) {
      next = messages().start({{plan.rounds[r + 1].exchange, all, received}});
    }
    DeviceMessages::wait(now);
    add_up(plan.rounds[r].sum, messages().rank(), all, received, mine, op, messages().size());
    now = std::move(next);
  }
}

void FlatDeviceCollectives::reduce_whole(Buffer inout, ReduceOp op) {
  const int size = messages().size();
  const Scratch scratch(messages(), inout.count * size, inout.dtype, inout.device);
  const Buffer gathered = scratch.buffer;
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), inout.count);
  const Parts parts = shared::cut(counts, size, "all_reduce");
  all_gather(inout, gathered, parts);
  add_up({0, inout.count, parts.offsets}, 0, gathered, gathered, inout, op, size);
}

void FlatDeviceCollectives::all_reduce(Buffer inout, ReduceOp op) {
  const bool small = bytes_of(inout.count, inout.dtype) <= kSmallReduction;
  if (!small || inout.count == 0 || messages().alone()) {
    return DeviceCollectives::all_reduce(inout, op);
  }
  reduce_whole(inout, op);
}

}  // namespace

std::unique_ptr<DeviceCollectives> make_flat_device_collectives(DeviceMessages& messages,
                                                                std::size_t chunk) {
  return std::make_unique<FlatDeviceCollectives>(messages, chunk);
}

}  // namespace fullshard::comm::c10d
