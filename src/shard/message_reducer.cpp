#include "shard/message_reducer.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "shard/dtype.h"
#include "shard/replica_updates.h"
#include "shard/stopwatch.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

std::byte* memory_of(const at::Tensor& buffer) {
  return static_cast<std::byte*>(buffer.mutable_data_ptr());
}

// What a buffer holds as one run of elements.
at::Tensor run_of(const at::Tensor& buffer, std::int64_t elements, at::ScalarType dtype) {
  return at::from_blob(memory_of(buffer), {elements}, dtype);
}

}  // namespace

MessageReducer::MessageReducer(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                               const Options& options)
    : GradientReducer(units, mesh.all->rank()),
      mesh_(mesh),
      options_(options),
      scale_(scale_of_mean(*mesh.all, options) * options.predivide_factor),
      kept_(units.size()),
      buckets_(units, options.bucket_bytes, [this](Bucket bucket) { start(std::move(bucket)); }) {
  for (std::size_t u = 0; u < units_.size(); ++u) kept_[u].has.resize(units_[u].parameters.size());
}

MessageReducer::Kept& MessageReducer::keep_all_of(std::size_t unit) {
  Kept& kept = kept_[unit];
  if (kept.whole.defined()) return kept;
  const FlatUnit& flat = units_[unit];
  kept.dtype = kept_dtype(flat, flat.reduce_dtype());
  kept.whole = take(flat.layout.flat_size(), kept.dtype);
  std::fill(kept.has.begin(), kept.has.end(), 0);
  return kept;
}

at::Tensor MessageReducer::take(std::int64_t elements, at::ScalarType dtype) {
  const std::int64_t bytes = elements * FlatUnit::bytes_of(dtype);
  count_held(bytes);
  return buffers_.take(bytes);
}

void MessageReducer::give_back(at::Tensor buffer, std::int64_t elements, at::ScalarType dtype) {
  count_held(-elements * FlatUnit::bytes_of(dtype));
  buffers_.give_back(std::move(buffer));
}

// A parameter's gradient in the buffer of its unit.
at::Tensor MessageReducer::place_of(std::size_t unit, std::size_t parameter) const {
  const FlatUnit& flat = units_[unit];
  const Kept& kept = kept_[unit];
  return parameter_in(flat, run_of(kept.whole, flat.layout.flat_size(), kept.dtype), parameter);
}

void MessageReducer::keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  Kept& kept = keep_all_of(unit);
  at::Tensor place = place_of(unit, parameter);
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
  give_back(std::exchange(kept.whole, {}), units_[unit].layout.flat_size(), kept.dtype);
}

void MessageReducer::forget(std::size_t unit, std::size_t parameter) {
  GradientFlags& has = kept_[unit].has;
  has[parameter] = 0;
  if (std::find(has.begin(), has.end(), 1) == has.end()) forget(unit);
}

at::Tensor MessageReducer::kept(std::size_t unit, std::size_t parameter) {
  const Kept& kept = kept_[unit];
  if (!kept.whole.defined() || kept.has[parameter] == 0) return {};
  return place_of(unit, parameter);
}

void MessageReducer::hand_over(std::size_t unit) { complete(unit, keep_all_of(unit).has); }

void MessageReducer::hand_over_rest(const std::vector<std::size_t>& rest) {
  std::vector<UnitFlags> flags;
  for (const std::size_t unit : rest) {
    const Kept& kept = kept_[unit];
    const bool has_some = kept.whole.defined();
    if (!has_some && !wants_gradients(units_[unit])) continue;
    flags.push_back({unit, has_some ? kept.has : GradientFlags(kept.has.size(), 0)});
  }
  use_replicas_now();
  const std::array<comm::Group*, 2> groups{mesh_.shard.get(), mesh_.replicate.get()};
  join_flags(groups, units_, flags, static_cast<std::int64_t>(round_));
  for (UnitFlags& unit : flags) {
    if (unit.any()) complete(unit.unit, std::move(unit.flags));
  }
  buckets_.flush();
}

void MessageReducer::complete(std::size_t unit, GradientFlags any) {
  Kept& kept = keep_all_of(unit);
  for (std::size_t i = 0; i < kept.has.size(); ++i) {
    if (kept.has[i] == 0) place_of(unit, i).zero_();
  }
  const FlatUnit& flat = units_[unit];
  if (options_.predivide_factor != 1) {
    run_of(kept.whole, flat.layout.flat_size(), kept.dtype).div_(options_.predivide_factor);
  }
  if (kept.dtype != flat.reduce_dtype()) convert(unit);
  buckets_.add({unit, std::move(any), std::exchange(kept.whole, {})});
}

// What was added up over passes is rounded to what travels.
void MessageReducer::convert(std::size_t unit) {
  const FlatUnit& flat = units_[unit];
  Kept& kept = kept_[unit];
  const std::int64_t elements = flat.layout.flat_size();
  at::Tensor exact = std::exchange(kept.whole, take(elements, flat.reduce_dtype()));
  run_of(kept.whole, elements, flat.reduce_dtype()).copy_(run_of(exact, elements, kept.dtype));
  give_back(std::move(exact), elements, std::exchange(kept.dtype, flat.reduce_dtype()));
}

// The gradients of several units lie rank after rank, and of a rank replica after replica where
// they divide updates, so that what a rank gets is one run.
void MessageReducer::start(Bucket bucket) {
  Flight flight{.units = std::move(bucket),
                .whole = {},
                .part = {},
                .own = {},
                .on_last_level = mesh_.replicate->size() == 1 || options_.hook != nullptr,
                .work = {}};
  flight.whole = pack(units_, flight.units, buffers_,
                      [](const FlatUnit& unit) { return std::span(unit.pieces); });
  const bool replicated = units_[flight.units.front().unit].replicated();
  if (!replicated) {
    std::int64_t held = 0;
    for (const CompleteUnit& complete : flight.units)
      held += units_[complete.unit].held_reduce_bytes();
    flight.part = buffers_.take(held);
  }
  const std::vector<std::int64_t> counts =
      replicated ? std::vector<std::int64_t>() : counts_of(flight.units);
  flight.work = options_.hook ? call_hook(flight, counts) : reduce(flight, counts);
  for (const CompleteUnit& complete : flight.units) {
    const FlatUnit& flat = units_[complete.unit];
    UnitReduction& count = counts_[complete.unit];
    ++count.reductions;
    count.bytes_read += replicated ? all_reduce_bytes(*mesh_.shard, flat.flat_reduce_bytes())
                                   : (mesh_.shard->size() - 1) * flat.held_reduce_bytes();
  }
  ++collectives_;
  flights_.push_back(std::move(flight));
}

std::vector<std::int64_t> MessageReducer::counts_of(const Bucket& bucket) const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(mesh_.shard->size()), 0);
  for (const CompleteUnit& complete : bucket) {
    for (int rank = 0; rank < mesh_.shard->size(); ++rank) {
      counts[static_cast<std::size_t>(rank)] += units_[complete.unit].layout.slice(rank).size();
    }
  }
  return counts;
}

comm::Work MessageReducer::reduce(const Flight& flight,
                                  const std::vector<std::int64_t>& counts) const {
  const FlatUnit& first = units_[flight.units.front().unit];
  const base::DType dtype = to_dtype(first.reduce_dtype(), first.name);
  const auto buffer = [&](const at::Tensor& bytes) {
    return comm::Buffer{memory_of(bytes), bytes.numel() / first.reduce_element_bytes(), dtype};
  };
  const comm::OpTag tag = tag_of(flight);
  if (counts.empty()) {
    return mesh_.shard->all_reduce(buffer(flight.whole), comm::ReduceOp::kMean, tag);
  }
  return mesh_.shard->reduce_scatter(buffer(flight.whole), buffer(flight.part),
                                     comm::ReduceOp::kMean, counts, tag);
}

comm::Work MessageReducer::call_hook(const Flight& flight,
                                     const std::vector<std::int64_t>& counts) const {
  const comm::OpTag tag = tag_of(flight);
  const FlatUnit& first = units_[flight.units.front().unit];
  const auto run = [&](const at::Tensor& buffer) {
    return run_of(buffer, buffer.numel() / first.reduce_element_bytes(), first.reduce_dtype());
  };
  const at::Tensor whole = run(flight.whole);
  const at::Tensor part = flight.part.defined() ? run(flight.part) : whole;
  return options_.hook({.unit = tag.unit,
                        .round = tag.step,
                        .whole = whole,
                        .part = part,
                        .counts = counts,
                        .mesh = mesh_});
}

comm::OpTag MessageReducer::tag_of(const Flight& flight) const {
  return {name_of(units_, flight.units), static_cast<std::int64_t>(round_)};
}

void MessageReducer::start_last_level(Flight& flight) {
  flight.on_last_level = true;
  flight.work = start_mean(mesh_, units_, flight.units, flight.result(), flight.own, buffers_,
                           static_cast<std::int64_t>(round_));
  for (const CompleteUnit& complete : flight.units) {
    counts_[complete.unit].bytes_read += bytes_of_mean(*mesh_.replicate, units_[complete.unit]);
  }
}

void MessageReducer::poll() {
  const Stopwatch watch(exposed_seconds_);
  advance(/*wait=*/false);
}

void MessageReducer::finish_units() {
  buckets_.flush();
  advance(/*wait=*/true);
}

// Calls on the replicas' group meet in their order. When a unit gets there is a matter of time, so
// before another call all of them have to.
void MessageReducer::use_replicas_now() {
  if (mesh_.replicate->size() == 1) return;
  buckets_.flush();
  for (Flight& flight : flights_) {
    if (flight.on_last_level && !options_.hook) continue;
    wait_for(flight);
    if (!flight.on_last_level) start_last_level(flight);
  }
}

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
    store(first);
    end(std::move(first));
    flights_.pop_front();
  }
}

void MessageReducer::wait_for(Flight& flight) {
  const Stopwatch watch(unit_exposed_[flight.units.front().unit]);
  flight.work.wait();
}

void MessageReducer::store(const Flight& flight) {
  const FlatUnit& first = units_[flight.units.front().unit];
  std::byte* means = memory_of(flight.own.defined() ? flight.own : flight.result());
  if (first.divided() && !flight.own.defined()) {  // a hook gives all that this rank holds
    const std::vector<std::int64_t> counts =
        counts_of_replicas(units_, flight.units, mesh_.shard->rank());
    const std::int64_t before =
        std::accumulate(counts.begin(), counts.begin() + mesh_.replicate->rank(), std::int64_t{0});
    means += before * first.reduce_element_bytes();
  }
  store_means(flight.units, means, scale_);
}

void MessageReducer::end(Flight flight) {
  for (const CompleteUnit& complete : flight.units) {
    count_held(-units_[complete.unit].flat_reduce_bytes());
  }
  buffers_.give_back(std::move(flight.whole));
  if (flight.part.defined()) buffers_.give_back(std::move(flight.part));
  if (flight.own.defined()) buffers_.give_back(std::move(flight.own));
}

}  // namespace fullshard::shard
