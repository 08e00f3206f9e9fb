#include <algorithm>
#include <set>

#include "shard/engine.h"

namespace fullshard::shard {

std::int64_t Engine::bytes_between_hosts() const {
  const std::set<comm::Group*> groups = {mesh_.all.get(), mesh_.shard.get(), mesh_.replicate.get()};
  std::int64_t bytes = memory_->bytes_between_hosts();
  for (const comm::Group* group : groups) bytes += group->bytes_between_hosts();
  return bytes;
}

Counters Engine::counters() const {
  reducer_->collect();
  Counters sum;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const FlatUnit& unit = units_[u];
    const std::int64_t gathers = pager_->residency(u).gathers;
    const UnitReduction& reduction = reducer_->reduction(u);
    sum.all_gathers += gathers;
    sum.all_gather_bytes += memory_->gathered_bytes(u, gathers);
    sum.reduce_scatters += reduction.reductions;
    sum.reduce_scatter_bytes += reduction.bytes_read;
    sum.parameter_shard_bytes += unit.held_bytes();
    if (unit.has_masters()) sum.parameter_shard_bytes += unit.own_shard_bytes();
    sum.units.push_back({.name = unit.name,
                         .bytes = unit.layout.flat_bytes(),
                         .all_gathers = gathers,
                         .reduce_scatters = reduction.reductions,
                         .exposed_seconds = gather_exposed_[u] + reducer_->exposed_seconds(u)});
  }
  sum.all_gather_collectives = pager_->collectives();
  sum.update_gathers = update_gathers_.units;
  sum.update_gather_bytes = update_gathers_.bytes;
  sum.reduce_scatter_collectives = reducer_->collectives();
  sum.bytes_between_hosts = bytes_between_hosts() - between_hosts_before_;
  sum.resharded_bytes = memory_->resharded_bytes();
  for (const at::Tensor& copy : scope_copies_) {
    sum.staging_bytes += static_cast<std::int64_t>(copy.nbytes());
  }
  for (const at::Tensor& masters : scope_masters_) {
    if (masters.defined()) sum.staging_bytes += static_cast<std::int64_t>(masters.nbytes());
  }
  // Units that came all together count whether or not this rank uses them; they stay.
  sum.live_unsharded_bytes = std::max(pager_->live_bytes(), memory_->kept_bytes());
  sum.peak_unsharded_bytes = std::max(pager_->peak_bytes(), memory_->kept_bytes());
  sum.gradient_bytes = reducer_->gradient_bytes();
  sum.unreduced_gradient_bytes = reducer_->unreduced_bytes();
  sum.peak_unreduced_gradient_bytes = reducer_->peak_unreduced_bytes();
  sum.copied_gradient_bytes = reducer_->copied_bytes();
  sum.exposed_comm_seconds = gather_seconds() + reducer_->exposed_seconds();
  sum.reduction_seconds = reducer_->reduction_seconds();
  sum.update_seconds = operator_seconds_;
  sum.shard_moves = shard_moves_;
  sum.reductions_for_others = reducer_->reductions_for_others();
  return sum;
}

}  // namespace fullshard::shard
