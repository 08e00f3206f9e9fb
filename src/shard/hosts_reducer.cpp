#include "shard/hosts_reducer.h"

#include <array>
#include <cstring>
#include <utility>

#include "shard/replica_updates.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {

HostsReducer::HostsReducer(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                           const Options& options)
    : SharedReducer(*mesh.shard, units, {}, /*shares_work=*/false),
      mesh_(mesh),
      scale_(scale_of_mean(*mesh.all, options)),
      dynamic_(options.dynamic),
      buckets_(units, options.bucket_bytes, [this](Bucket bucket) { start(std::move(bucket)); }) {}

GradientFlags HostsReducer::flags_here(std::size_t unit) const {
  GradientFlags flags;
  for (std::size_t i = 0; i < units_[unit].parameters.size(); ++i) {
    flags.push_back(anyone_has(unit, i) ? 1 : 0);
  }
  return flags;
}

// Units enter buckets in the order in which they became complete here, which is the same on all
// replicas.
void HostsReducer::poll() {
  const Stopwatch watch(exposed_seconds_);
  while (!pending_.empty() && is_ready(pending_.front())) {
    const std::size_t unit = pending_.front();
    pending_.erase(pending_.begin());
    reduce_here(unit, flags_here(unit));
  }
  while (!flights_.empty() && flights_.front().work.done()) finish_first();
}

void HostsReducer::hand_over_rest(const std::vector<std::size_t>& rest) {
  const std::vector<std::size_t> complete = std::exchange(pending_, {});
  for (const std::size_t unit : rest) hand_over(unit);
  pending_.clear();
  for (const std::size_t unit : complete) {
    wait_until_ready(unit);
    reduce_here(unit, flags_here(unit));
  }
  std::vector<UnitFlags> flags;
  for (const std::size_t unit : rest) {
    wait_until_ready(unit);
    UnitFlags here{unit, flags_here(unit)};
    if (here.any() || wants_gradients(units_[unit])) {
      flags.push_back(std::move(here));
    } else {
      post_consumed(unit);
    }
  }
  const std::array<comm::Group*, 1> groups{mesh_.replicate.get()};
  join_flags(groups, units_, flags, static_cast<std::int64_t>(round_));
  for (UnitFlags& unit : flags) {
    if (unit.any()) {
      reduce_here(unit.unit, std::move(unit.flags));
    } else {
      post_consumed(unit.unit);
    }
  }
}

// Adds up what this rank holds of a unit's gradients over the host.
void HostsReducer::reduce_here(std::size_t unit, GradientFlags any) {
  const FlatUnit& flat = units_[unit];
  at::Tensor part = buffers_.take(flat.held_reduce_bytes());
  auto* memory = static_cast<std::byte*>(part.mutable_data_ptr());
  for (std::size_t i = 0; i < any.size(); ++i) {
    const layout::Range held = flat.held_range(i);
    if (any[i] == 0 || held.empty()) continue;
    std::byte* out = memory + flat.held_offset(i) * flat.reduce_element_bytes();
    if (anyone_has(unit, i)) {
      reduce_range(unit, i, held, {out, flat.reduce_dtype()}, /*accumulate=*/false);
      count_read(unit, i, held);
    } else {
      std::memset(out, 0, static_cast<std::size_t>(held.size() * flat.reduce_element_bytes()));
    }
  }
  post_consumed(unit);
  ++counts_[unit].reductions;
  buckets_.add({unit, std::move(any), std::move(part)});
}

// Over the replicas: all that this host's rank holds, or only what this rank updates of it.
void HostsReducer::start(Bucket bucket) {
  Flight flight{.units = std::move(bucket), .part = {}, .own = {}, .work = {}};
  flight.part = pack(units_, flight.units, buffers_, [&](const FlatUnit& unit) {
    return unit.pieces_of(unit.replicated() ? 0 : mesh_.shard->rank());
  });
  flight.work = start_mean(mesh_, units_, flight.units, flight.part, flight.own, buffers_,
                           static_cast<std::int64_t>(round_));
  for (const CompleteUnit& complete : flight.units) {
    counts_[complete.unit].bytes_read += bytes_of_mean(*mesh_.replicate, units_[complete.unit]);
  }
  ++collectives_;
  flights_.push_back(std::move(flight));
}

void HostsReducer::finish_first() {
  Flight& flight = flights_.front();
  {
    const Stopwatch watch(unit_exposed_[flight.units.front().unit]);
    flight.work.wait();
  }
  const at::Tensor& means = flight.own.defined() ? flight.own : flight.part;
  store_means(flight.units, static_cast<std::byte*>(means.mutable_data_ptr()), scale_);
  buffers_.give_back(std::move(flight.part));
  if (flight.own.defined()) buffers_.give_back(std::move(flight.own));
  flights_.pop_front();
}

void HostsReducer::finish_units() {
  buckets_.flush();
  while (!flights_.empty()) finish_first();
  collect();
}

}  // namespace fullshard::shard
