#include "shard/private_unit_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "shard/round_up.h"
#include "shard/stopwatch.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes

std::int64_t slice_bytes(const FlatUnit& unit) { return round_up(unit.held_bytes(), kAlignment); }

std::byte* memory_of(const at::Tensor& buffer) {
  return static_cast<std::byte*>(buffer.mutable_data_ptr());
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// The group of `size` neighbouring ranks that this one is in. Collective.
std::shared_ptr<comm::Group> neighbours(comm::Group& group, int size) {
  std::shared_ptr<comm::Group> own;
  for (int first = 0; first < group.size(); first += size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), first);
    if (auto made = group.subgroup(ranks)) own = std::move(made);
  }
  return own;
}

// What a collective about several units is called in errors.
std::string name_of(const std::vector<FlatUnit>& units, const std::vector<std::size_t>& of) {
  std::string names;
  for (const std::size_t unit : of) names += (names.empty() ? "" : " + ") + units[unit].name;
  return names;
}

}  // namespace

PrivateUnitMemory::PrivateUnitMemory(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                     const UnitMemoryOptions& options)
    : units_(units),
      group_(mesh.shard),
      dynamic_(options.dynamic),
      bucket_bytes_(options.gather_bucket_bytes),
      gathered_(units.size()) {
  const int smaller = options.reshard_after_forward;
  if (smaller > 1 && smaller < group_->size()) smaller_ = neighbours(*group_, smaller);
  replicated_ = place(/*replicated=*/true);
  own_ = place(/*replicated=*/false);
  for (const FlatUnit& unit : units_) {
    if (options.from_rank0) {
      store_rank0s(*mesh.all, unit);
    } else if (!unit.has_masters()) {
      store_own(unit);
    }
  }
}

at::Tensor PrivateUnitMemory::place(bool replicated) {
  std::int64_t bytes = kAlignment;
  for (const FlatUnit& unit : units_) {
    if (unit.replicated() == replicated) bytes += slice_bytes(unit);
  }
  at::Tensor placed = at::zeros({bytes}, at::kByte);
  std::byte* memory = memory_of(placed);
  for (FlatUnit& unit : units_) {
    if (unit.replicated() != replicated) continue;
    unit.set_held_memory(memory);
    memory += slice_bytes(unit);
  }
  return placed;
}

// Replicated units stay where the model has them mapped.
void PrivateUnitMemory::move(const std::vector<at::Tensor>& held) {
  buffers_.clear();
  own_ = at::Tensor();
  own_ = place(/*replicated=*/false);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].replicated()) continue;
    const auto* values = static_cast<const std::byte*>(held[u].const_data_ptr());
    copy_bytes(units_[u].held_memory, values, units_[u].held_bytes());
  }
}

void PrivateUnitMemory::store_rank0s(comm::Group& all, const FlatUnit& unit) {
  at::Tensor whole = buffers_.take(unit.layout.flat_bytes());
  if (all.rank() == 0) store_whole(unit, memory_of(whole));
  all.broadcast({memory_of(whole), unit.layout.flat_size(), unit.layout.dtype()}, 0, {unit.name, 0})
      .wait();
  copy_bytes(unit.held_memory, memory_of(whole) + unit.held.begin * unit.element_bytes(),
             unit.held_bytes());
  buffers_.give_back(std::move(whole));
}

void PrivateUnitMemory::start(std::span<const int> units, std::int64_t version) {
  if (dynamic_) {
    start_all(version);
    return;
  }
  std::vector<std::size_t> sharded;
  std::vector<std::size_t> resharded;
  for (const int number : units) {
    const auto unit = static_cast<std::size_t>(number);
    const Gathered& gathered = gathered_[unit];
    if (units_[unit].replicated() || is_here(unit, version)) continue;
    const bool has_piece = gathered.piece.defined() && gathered.piece_version == version;
    (has_piece ? resharded : sharded).push_back(unit);
  }
  launch(std::move(sharded), version, /*resharded=*/false);
  launch(std::move(resharded), version, /*resharded=*/true);
}

std::byte* PrivateUnitMemory::gather(std::size_t unit, std::int64_t version) {
  if (units_[unit].replicated()) return units_[unit].held_memory;
  const std::array<int, 1> alone{static_cast<int>(unit)};
  start(alone, version);
  land(unit);
  return memory_of(gathered_[unit].buffer);
}

// All that is sharded, in one order on all ranks. Each is waited for when it is used.
void PrivateUnitMemory::start_all(std::int64_t version) {
  if (all_started_ == version) return;
  std::vector<std::size_t> together;
  std::int64_t bytes = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].replicated()) continue;
    bytes += units_[unit].layout.flat_bytes();
    if (!together.empty() && bytes > bucket_bytes_) {
      launch(std::exchange(together, {}), version, /*resharded=*/false);
      bytes = units_[unit].layout.flat_bytes();
    }
    together.push_back(unit);
  }
  launch(std::move(together), version, /*resharded=*/false);
  all_started_ = version;
}

// Or on its way.
bool PrivateUnitMemory::is_here(std::size_t unit, std::int64_t version) const {
  const Gathered& gathered = gathered_[unit];
  if (gathered.flight) return gathered.flight->version == version;
  return gathered.buffer.defined() && gathered.version == version;
}

void PrivateUnitMemory::launch(std::vector<std::size_t> units, std::int64_t version,
                               bool resharded) {
  if (units.empty()) return;
  const Stopwatch watch(waited_seconds_);
  const auto flight = std::make_shared<Flight>(
      Flight{.units = std::move(units), .resharded = resharded, .version = version, .work = {}});
  for (const std::size_t unit : flight->units) {
    Gathered& gathered = gathered_[unit];
    land(unit);  // of an older version
    gathered.version = 0;
    if (!gathered.buffer.defined())
      gathered.buffer = buffers_.take(units_[unit].layout.flat_bytes());
  }
  if (flight->units.size() == 1) {
    start_alone(*flight);
  } else {
    start_packed(*flight);
  }
  for (const std::size_t unit : flight->units) gathered_[unit].flight = flight;
}

comm::Group& PrivateUnitMemory::group_of(const Flight& flight) const {
  return flight.resharded ? *smaller_ : *group_;
}

const std::byte* PrivateUnitMemory::own_piece(std::size_t unit, bool resharded) const {
  return resharded ? memory_of(gathered_[unit].piece) : units_[unit].held_memory;
}

layout::Range PrivateUnitMemory::piece_of(std::size_t unit, int rank, bool resharded) const {
  const FlatUnit& flat = units_[unit];
  if (!resharded) {
    const layout::Range slice = flat.layout.slice(rank);
    return {slice.begin * flat.element_bytes(), slice.end * flat.element_bytes()};
  }
  const std::int64_t bytes = flat.layout.flat_bytes();
  const std::int64_t longest =
      round_up((bytes + smaller_->size() - 1) / smaller_->size(), kAlignment);
  return {std::min(rank * longest, bytes), std::min((rank + 1) * longest, bytes)};
}

void PrivateUnitMemory::start_alone(Flight& flight) {
  const std::size_t unit = flight.units.front();
  const FlatUnit& flat = units_[unit];
  comm::Group& group = group_of(flight);
  const std::int64_t element = flat.element_bytes();
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t bytes = piece_of(unit, rank, flight.resharded).size();
    counts.push_back(bytes / element);
  }
  const std::int64_t mine = counts[static_cast<std::size_t>(group.rank())];
  flight.work = group.all_gather(
      {own_piece(unit, flight.resharded), mine, flat.layout.dtype()},
      {memory_of(gathered_[unit].buffer), flat.layout.flat_size(), flat.layout.dtype()}, counts,
      {flat.name, flight.version});
}

void PrivateUnitMemory::start_packed(Flight& flight) {
  comm::Group& group = group_of(flight);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 0);
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const std::size_t unit : flight.units) {
      counts[static_cast<std::size_t>(rank)] += piece_of(unit, rank, flight.resharded).size();
    }
  }
  const std::int64_t mine = counts[static_cast<std::size_t>(group.rank())];
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  flight.mine = buffers_.take(mine);
  flight.all = buffers_.take(all);
  std::byte* to = memory_of(flight.mine);
  for (const std::size_t unit : flight.units) {
    const std::int64_t bytes = piece_of(unit, group.rank(), flight.resharded).size();
    copy_bytes(to, own_piece(unit, flight.resharded), bytes);
    to += bytes;
  }
  flight.work = group.all_gather({memory_of(flight.mine), mine, base::DType::kUInt8},
                                 {memory_of(flight.all), all, base::DType::kUInt8}, counts,
                                 {name_of(units_, flight.units), flight.version});
}

void PrivateUnitMemory::land(std::size_t unit) {
  const std::shared_ptr<Flight> flight = gathered_[unit].flight;
  if (!flight) return;
  const Stopwatch watch(waited_seconds_);
  flight->work.wait();
  if (flight->units.size() > 1) {
    unpack(*flight);
    buffers_.give_back(std::move(flight->mine));
    buffers_.give_back(std::move(flight->all));
  }
  for (const std::size_t landed : flight->units) {
    Gathered& gathered = gathered_[landed];
    const int rank = group_of(*flight).rank();
    gathered.received +=
        units_[landed].layout.flat_bytes() - piece_of(landed, rank, flight->resharded).size();
    gathered.version = flight->version;
    gathered.flight.reset();
  }
}

void PrivateUnitMemory::unpack(const Flight& flight) {
  const std::byte* from = memory_of(flight.all);
  for (int rank = 0; rank < group_of(flight).size(); ++rank) {
    for (const std::size_t unit : flight.units) {
      const layout::Range piece = piece_of(unit, rank, flight.resharded);
      copy_bytes(memory_of(gathered_[unit].buffer) + piece.begin, from, piece.size());
      from += piece.size();
    }
  }
}

void PrivateUnitMemory::release(std::size_t unit) {
  Gathered& gathered = gathered_[unit];
  if (!gathered.buffer.defined()) return;
  land(unit);
  if (dynamic_) return;
  // Between a forward and its backward. Inside that, what runs again has gradients on as well.
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (smaller_ && at::GradMode::is_enabled() && !in_backward) keep_piece(unit);
  buffers_.give_back(std::exchange(gathered.buffer, {}));
}

void PrivateUnitMemory::keep_piece(std::size_t unit) {
  Gathered& gathered = gathered_[unit];
  if (gathered.piece.defined() && gathered.piece_version == gathered.version) return;
  const layout::Range range = piece_of(unit, smaller_->rank(), /*resharded=*/true);
  if (!gathered.piece.defined()) gathered.piece = buffers_.take(range.size());
  copy_bytes(memory_of(gathered.piece), memory_of(gathered.buffer) + range.begin, range.size());
  gathered.piece_version = gathered.version;
}

void PrivateUnitMemory::end_step() {
  for (Gathered& gathered : gathered_) {
    if (gathered.piece.defined()) buffers_.give_back(std::exchange(gathered.piece, {}));
  }
}

std::int64_t PrivateUnitMemory::resharded_bytes() const {
  std::int64_t bytes = 0;
  for (const Gathered& gathered : gathered_) {
    if (gathered.piece.defined()) bytes += gathered.piece.numel();
  }
  return bytes;
}

std::int64_t PrivateUnitMemory::kept_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t unit = 0; unit < units_.size() && dynamic_; ++unit) {
    if (gathered_[unit].buffer.defined()) bytes += units_[unit].layout.flat_bytes();
  }
  return bytes;
}

void PrivateUnitMemory::take_part(std::int64_t version) {
  if (!dynamic_ || all_landed_ == version) return;
  start_all(version);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) land(unit);
  all_landed_ = version;
}

}  // namespace fullshard::shard
