#include "shard/message_reducer.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shard/stopwatch.h"

namespace fullshard::shard {
namespace {

std::byte* memory_of(const at::Tensor& buffer) {
  return static_cast<std::byte*>(buffer.mutable_data_ptr());
}

// Where a parameter's gradient lies in the buffer of its unit.
at::Tensor place_of(const at::Tensor& whole, const FlatUnit& unit, std::size_t parameter) {
  const layout::PlacedParameter& placed = unit.layout.parameters()[parameter];
  return at::from_blob(memory_of(whole) + placed.offset * unit.element_bytes(), placed.spec.shape,
                       placed.strides(), unit.dtype());
}

std::int64_t own_bytes(const FlatUnit& unit) { return unit.own.size() * unit.element_bytes(); }

}  // namespace

MessageReducer::MessageReducer(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                               const Options& options)
    : GradientReducer(units, mesh.all->rank()),
      mesh_(mesh),
      scale_(scale_of_mean(*mesh.all, options)),
      dynamic_(options.dynamic),
      kept_(units.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) kept_[u].has.resize(units_[u].parameters.size());
}

MessageReducer::Kept& MessageReducer::kept(std::size_t unit) {
  Kept& kept = kept_[unit];
  if (kept.whole.defined()) return kept;
  kept.whole = buffers_.take(units_[unit].layout.flat_bytes());
  std::fill(kept.has.begin(), kept.has.end(), 0);
  count_held(kept.whole.numel());
  return kept;
}

void MessageReducer::keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  Kept& kept = this->kept(unit);
  at::Tensor place = place_of(kept.whole, units_[unit], parameter);
  if (std::exchange(kept.has[parameter], 1) == 1) {  // from an earlier pass without sync
    place.add_(gradient);
    return;
  }
  place.copy_(to_dense(gradient));
  copied_bytes_ += static_cast<std::int64_t>(place.nbytes());
}

void MessageReducer::forget(std::size_t unit) {
  Kept& kept = kept_[unit];
  if (!kept.whole.defined()) return;
  count_held(-kept.whole.numel());
  buffers_.give_back(std::exchange(kept.whole, {}));
}

void MessageReducer::hand_over(std::size_t unit) { start(unit, kept(unit).has); }

void MessageReducer::hand_over_rest(const std::vector<std::size_t>& rest) {
  std::vector<UnitFlags> flags;
  for (const std::size_t unit : rest) {
    const Kept& kept = kept_[unit];
    const bool has_some = kept.whole.defined();
    if (!has_some && !wants_gradients(units_[unit])) continue;
    flags.push_back({unit, has_some ? kept.has : GradientFlags(kept.has.size(), 0)});
  }
  const std::array<comm::Group*, 2> groups{mesh_.shard.get(), mesh_.replicate.get()};
  join_flags(groups, units_, flags, static_cast<std::int64_t>(round_));
  for (UnitFlags& unit : flags) {
    if (unit.any()) start(unit.unit, std::move(unit.flags));
  }
}

void MessageReducer::start(std::size_t unit, GradientFlags any) {
  const FlatUnit& flat = units_[unit];
  Kept& kept = this->kept(unit);
  for (std::size_t i = 0; i < kept.has.size(); ++i) {
    if (kept.has[i] == 0) place_of(kept.whole, flat, i).zero_();
  }
  Flight flight{.unit = unit,
                .any = std::move(any),
                .whole = std::exchange(kept.whole, {}),
                .on_last_level = mesh_.replicate->size() == 1};
  const layout::UnitLayout& layout = flat.layout;
  const comm::OpTag tag{flat.name, static_cast<std::int64_t>(round_)};
  const comm::Buffer whole{memory_of(flight.whole), layout.flat_size(), layout.dtype()};
  if (flat.replicated()) {
    flight.work = mesh_.shard->all_reduce(whole, comm::ReduceOp::kMean, tag);
    counts_[unit].bytes_read += all_reduce_bytes(*mesh_.shard, layout.flat_bytes());
  } else {
    flight.part = buffers_.take(own_bytes(flat));
    flight.work = mesh_.shard->reduce_scatter(
        whole, {memory_of(flight.part), flat.own.size(), layout.dtype()}, comm::ReduceOp::kMean,
        flat.slice_sizes(), tag);
    counts_[unit].bytes_read += (mesh_.shard->size() - 1) * own_bytes(flat);
  }
  ++counts_[unit].reductions;
  flights_.push_back(std::move(flight));
}

void MessageReducer::start_last_level(Flight& flight) {
  const FlatUnit& flat = units_[flight.unit];
  flight.on_last_level = true;
  flight.work = mesh_.replicate->all_reduce(
      {memory_of(flight.result()), flat.own.size(), flat.layout.dtype()}, comm::ReduceOp::kMean,
      {flat.name, static_cast<std::int64_t>(round_)});
  counts_[flight.unit].bytes_read += all_reduce_bytes(*mesh_.replicate, own_bytes(flat));
}

void MessageReducer::poll() {
  const Stopwatch watch(exposed_seconds_);
  advance(/*wait=*/false);
}

void MessageReducer::finish_units() { advance(/*wait=*/true); }

// Units enter the last level in the order of their start, which is the same on every rank.
void MessageReducer::advance(bool wait) {
  for (Flight& flight : flights_) {
    if (flight.on_last_level) continue;
    if (!wait && !flight.work.done()) break;
    wait_for(flight);
    start_last_level(flight);
  }
  while (!flights_.empty()) {
    Flight& first = flights_.front();
    if (!first.on_last_level || (!wait && !first.work.done())) break;
    wait_for(first);
    store_mean(first.unit, first.any, first.result(), scale_);
    end(std::move(first));
    flights_.pop_front();
  }
}

void MessageReducer::wait_for(Flight& flight) {
  const Stopwatch watch(unit_exposed_[flight.unit]);
  flight.work.wait();
}

void MessageReducer::end(Flight flight) {
  count_held(-flight.whole.numel());
  buffers_.give_back(std::move(flight.whole));
  if (flight.part.defined()) buffers_.give_back(std::move(flight.part));
}

}  // namespace fullshard::shard
