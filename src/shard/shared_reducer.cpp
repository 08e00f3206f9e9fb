#include "shard/shared_reducer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/base/deadline.h"
#include "fullshard/comm/reduce.h"
#include "shard/dtype.h"
#include "shard/round_up.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kLine = 64;  // bytes; ranks write their own rows without sharing cache lines
constexpr std::size_t kKeptCopy = std::size_t{16} << 10;
constexpr std::int64_t kNone = -1;  // the place of a gradient that a rank does not have

constexpr double kReducedPerSecond = 3e9;  // bytes of results, about
constexpr base::Duration kLongReduction = std::chrono::seconds(2);
constexpr base::Duration kPause = std::chrono::microseconds(20);

// A place says where in a rank's row a gradient is, and whether it is in FlatUnit::exact_dtype, as
// those of several passes are.
std::int64_t place_at(std::int64_t offset, bool exact) { return 2 * offset + (exact ? 1 : 0); }
std::int64_t offset_at(std::int64_t place) { return place / 2; }
bool is_exact(std::int64_t place) { return place % 2 == 1; }

// Whether comm::reduce.h adds up `from` to `to` in one pass.
bool reduces_to(at::ScalarType from, at::ScalarType to) {
  return from == to || (c10::isReducedFloatingType(from) && to == at::kFloat);
}

// The gradient seen so that its row-major order is the storage order of the parameter, in which
// ranks own ranges of it.
at::Tensor as_stored(const FlatUnit& unit, std::size_t parameter, const at::Tensor& gradient) {
  const std::int64_t dimension = unit.cut_dimension(parameter);
  return dimension == 0 ? gradient : to_dense(gradient).movedim(dimension, 0);
}

}  // namespace

SharedReducer::SharedReducer(comm::Group& group, std::vector<FlatUnit>& units,
                             const Options& options, bool shares_work)
    : GradientReducer(units, group.rank()),
      group_(group),
      divide_factor_(options.divide_factor),
      board_(group.allocate_signals(2 * units.size(), "gradient reductions")),
      ready_(0),
      consumed_(units.size()),
      held_(units.size()),
      reduced_(units.size(), 0),
      lent_any_(units.size()) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::size_t parameters = units_[u].parameters.size();
    held_[u].gradients.resize(parameters);
    held_[u].copies.resize(parameters);
    lent_any_[u].resize(parameters);
    tags_.push_back({.unit = units_[u].name});
    notice_offset_.push_back(notice_row_);
    notice_row_ += round_up(static_cast<std::int64_t>(parameters * sizeof(std::int64_t)), kLine);
  }
  pending_.reserve(units_.size());
  parts_.reserve(static_cast<std::size_t>(group.size()));
  const std::int64_t bytes = std::max(notice_row_ * group.size(), kLine);
  notices_ = group.allocate_shared(static_cast<std::size_t>(bytes), "gradient notices");
  memory_ = StepMemory::make(group, units_);
  if (!shares_work) return;
  claims_ = std::make_unique<ReductionClaims>(group, units_.size());
  lent_.reserve(units_.size());
}

std::span<std::int64_t> SharedReducer::places(int rank, std::size_t unit) const {
  std::byte* at = notices_->data() + rank * notice_row_ + notice_offset_[unit];
  return {reinterpret_cast<std::int64_t*>(at), units_[unit].parameters.size()};
}

void SharedReducer::collect() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (held_[unit].round == 0) continue;
    if (board_->reached(consumed_ + unit, held_[unit].round)) let_go(unit);
  }
}

void SharedReducer::let_go(std::size_t unit) {
  held_[unit].round = 0;
  for (at::Tensor& gradient : held_[unit].gradients) let_go(gradient);
}

void SharedReducer::let_go(at::Tensor& gradient) {
  if (!gradient.defined()) return;
  count_held(-static_cast<std::int64_t>(gradient.nbytes()));
  gradient.reset();
}

// A round's notice replaces the last one's only after every rank has read that.
void SharedReducer::enter_unit(std::size_t unit) {
  {
    const Stopwatch watch(exposed_seconds_);
    const Stopwatch unit_watch(unit_exposed_[unit]);
    tags_[unit].step = static_cast<std::int64_t>(round_) - 1;
    board_->wait(consumed_ + unit, round_ - 1, "reduce_scatter", tags_[unit]);
  }
  collect();
  std::ranges::fill(places(group_.rank(), unit), kNone);
}

void SharedReducer::keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  if (is_direct()) {
    give(unit, parameter, gradient);
  } else {
    hold(unit, parameter, gradient);
  }
}

void SharedReducer::forget(std::size_t unit) {
  std::ranges::fill(places(group_.rank(), unit), kNone);
  let_go(unit);
}

void SharedReducer::forget(std::size_t unit, std::size_t parameter) {
  places(group_.rank(), unit)[parameter] = kNone;
  let_go(held_[unit].gradients[parameter]);
}

at::Tensor SharedReducer::kept(std::size_t unit, std::size_t parameter) {
  return held_[unit].gradients[parameter];
}

// Keeps a gradient where the other ranks can read it: as it is, if it was made there and is nobody
// else's, otherwise a copy.
void SharedReducer::hold(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  std::int64_t& place = places(group_.rank(), unit)[parameter];
  at::Tensor& held = held_[unit].gradients[parameter];
  if (place != kNone) {  // from an earlier pass without sync
    held.add_(as_stored(units_[unit], parameter, gradient));
    return;
  }
  const bool owned = gradient.is_sparse() || is_only_ours(gradient);
  const at::Tensor dense = as_stored(units_[unit], parameter, to_dense(gradient));
  const FlatUnit& flat = units_[unit];
  const at::ScalarType dtype = kept_dtype(flat, flat.dtype());
  const bool here = memory_->offset_of(dense.const_data_ptr()) != kNone;
  if (here && owned && dense.is_contiguous() && dense.scalar_type() == dtype) {
    held = dense;
  } else {
    held = place_for_copy(unit, parameter, dense.sizes(), dtype);
    held.copy_(dense);
    copied_bytes_ += static_cast<std::int64_t>(held.nbytes());
  }
  held_[unit].round = round_;
  count_held(static_cast<std::int64_t>(held.nbytes()));
  const std::int64_t offset = held.numel() == 0 ? 0 : memory_->offset_of(held.const_data_ptr());
  place = place_at(offset, dtype != flat.dtype());
}

// Small ones keep their place from step to step.
at::Tensor SharedReducer::place_for_copy(std::size_t unit, std::size_t parameter,
                                         at::IntArrayRef shape, at::ScalarType dtype) {
  at::Tensor& last = held_[unit].copies[parameter];
  if (!last.defined() || last.sizes() != shape || last.scalar_type() != dtype) {
    at::Tensor made = memory_->make_copy(dtype, shape);
    if (made.nbytes() > kKeptCopy) return made;
    last = std::move(made);
  }
  return last;
}

// Without other ranks a gradient is the shard's, as autograd would have stored it.
void SharedReducer::give(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  places(group_.rank(), unit)[parameter] = 0;
  at::Tensor& mine = shards_[unit][parameter].mutable_grad();
  const at::ScalarType mine_dtype = units_[unit].shard_dtype();
  if (mine.defined()) {
    const at::Tensor more = as_stored(units_[unit], parameter, gradient);
    mine.view(more.sizes()).add_(more);
    return;
  }
  const bool owned = gradient.is_sparse() || is_only_ours(gradient);
  const at::Tensor dense = as_stored(units_[unit], parameter, to_dense(gradient));
  // Not a view in autograd's eyes: torch::optim::Optimizer::zero_grad detaches gradients in place.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (owned && dense.is_contiguous() && dense.scalar_type() == mine_dtype) {
    mine = dense.view({-1});
  } else {
    mine = at::empty({dense.numel()}, mine_dtype);
    mine.view(dense.sizes()).copy_(dense);
    copied_bytes_ += static_cast<std::int64_t>(mine.nbytes());
  }
}

void SharedReducer::announce(std::size_t unit) {
  board_->post(ready_ + unit, round_, "reduce_scatter", tag_of(unit));
  pending_.push_back(unit);
}

void SharedReducer::hand_over(std::size_t unit) {
  if (claims_) offer(unit);
  announce(unit);
}

// Nobody else adds to what this rank has already.
void SharedReducer::offer(std::size_t unit) {
  const bool is_first =
      std::none_of(shards_[unit].begin(), shards_[unit].end(),
                   [](const at::Tensor& shard) { return shard.grad().defined(); });
  std::int64_t place = ReductionClaims::kNotOffered;
  if (is_first && units_[unit].own_shard_bytes() > 0) {
    const auto in_reach = [this](std::size_t bytes) { return memory_->try_make(bytes); };
    place = memory_->offset_of(own_[unit].memory_from(in_reach));
  }
  claims_->offer(unit, {place, units_[unit].own, base::Clock::now().time_since_epoch()});
}

// Whether this rank is so far behind all others that one of them may reduce its part of a ready
// unit while it goes on.
bool SharedReducer::is_late_with(std::size_t unit) const {
  base::Duration last{0};
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank != group_.rank()) last = std::max(last, claims_->offered_by(rank, unit).arrival);
  }
  const auto bytes = static_cast<double>(units_[unit].own_shard_bytes());
  const std::chrono::duration<double> reducing(bytes / kReducedPerSecond);
  return base::Clock::now().time_since_epoch() - last > reducing;
}

// A rank that is late leaves what it has just handed over to those that are ahead, until its next
// unit is complete.
void SharedReducer::poll() {
  const Stopwatch watch(exposed_seconds_);
  const std::size_t newest = pending_.back();
  for (const std::size_t unit : pending_) {
    if (is_ready(unit) && !(unit == newest && claims_ && is_late_with(unit))) reduce_own(unit);
  }
  for (const std::size_t unit : pending_) {
    if (unit == newest || !is_ready(unit)) continue;
    for (int owner = 0; owner < group_.size(); ++owner) {
      const bool is_behind = board_->value(owner, ready_ + newest) < round_;
      if (is_behind && may_claim(owner, unit)) reduce_for(owner, unit);
    }
  }
  // A unit may have become ready since.
  std::erase_if(pending_, [&](std::size_t unit) {
    if (!is_taken_care_of(unit)) return false;
    finish(unit);
    return true;
  });
}

void SharedReducer::hand_over_rest(const std::vector<std::size_t>& rest) {
  for (const std::size_t unit : rest) {
    if (claims_) claims_->offer(unit, {ReductionClaims::kNotOffered, {}, {}});
    announce(unit);
  }
}

void SharedReducer::wait_until_ready(std::size_t unit) {
  const Stopwatch watch(unit_exposed_[unit]);
  board_->wait(ready_ + unit, round_, "reduce_scatter", tag_of(unit));
}

void SharedReducer::finish_units() {
  for (const std::size_t unit : pending_) {
    wait_until_ready(unit);
    reduce_own(unit);
    for (int owner = 0; owner < group_.size(); ++owner) {
      if (may_claim(owner, unit)) reduce_for(owner, unit);
    }
    finish(unit);
  }
  pending_.clear();
  for (const std::size_t unit : lent_) take_back(unit);
  lent_.clear();
  collect();
}

void SharedReducer::end_step() {
  make_tensors_in(nullptr);
  memory_->trim();
}

bool SharedReducer::anyone_has(std::size_t unit, std::size_t parameter) const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (places(rank, unit)[parameter] != kNone) return true;
  }
  return false;
}

bool SharedReducer::anyone_has(std::size_t unit) const {
  for (std::size_t i = 0; i < units_[unit].parameters.size(); ++i) {
    if (anyone_has(unit, i)) return true;
  }
  return false;
}

// Unless it is done, by this rank or another.
void SharedReducer::reduce_own(std::size_t unit) {
  if (reduced_[unit] == round_) return;
  if (claims_ && !claims_->claim(group_.rank(), unit, round_)) return;
  reduced_[unit] = round_;
  const Stopwatch watch(unit_exposed_[unit]);
  const FlatUnit& flat = units_[unit];
  for (std::size_t i = 0; i < flat.parameters.size() && !is_direct(); ++i) {
    if (!anyone_has(unit, i)) continue;
    const bool accumulate = holds_gradient(unit, i);
    if (!accumulate) attach(unit, i);
    std::byte* memory = own_[unit].memory();
    std::byte* out = memory + flat.own_offset(i) * flat.shard_element_bytes();
    reduce_range(unit, i, flat.own_range(i), {out, flat.shard_dtype()}, accumulate);
  }
}

// Whether this rank's part is reduced, or another rank is at it.
bool SharedReducer::is_taken_care_of(std::size_t unit) const {
  if (reduced_[unit] == round_) return true;
  return claims_ && claims_->is_claimed(group_.rank(), unit, round_);
}

bool SharedReducer::may_claim(int owner, std::size_t unit) const {
  return claims_ && owner != group_.rank() &&
         claims_->offered_by(owner, unit).place != ReductionClaims::kNotOffered &&
         !claims_->is_claimed(owner, unit, round_);
}

void SharedReducer::reduce_for(int owner, std::size_t unit) {
  if (!claims_->claim(owner, unit, round_)) return;
  ++reductions_for_others_;
  const Stopwatch watch(unit_exposed_[unit]);
  const Stopwatch others_watch(seconds_for_others_);
  const FlatUnit& flat = units_[unit];
  const ReductionClaims::Part part = claims_->offered_by(owner, unit);
  for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
    if (!anyone_has(unit, i)) continue;
    const std::int64_t offset = flat.offset_in(part.own, i) * flat.shard_element_bytes();
    reduce_range(unit, i, flat.range_in(part.own, i),
                 {memory_->at(owner, part.place + offset), flat.shard_dtype()},
                 /*accumulate=*/false);
  }
  claims_->say_done(owner, unit, round_);
}

// Nothing is left for this rank to do. What another one does for it need not be done yet.
void SharedReducer::finish(std::size_t unit) {
  if (anyone_has(unit)) ++counts_[unit].reductions;
  if (reduced_[unit] != round_) lent_.push_back(unit);
  for (std::size_t i = 0; i < units_[unit].parameters.size() && !is_direct(); ++i) {
    lent_any_[unit][i] = anyone_has(unit, i);
    if (lent_any_[unit][i]) count_read(unit, i, units_[unit].own_range(i));
  }
  post_consumed(unit);
}

// Takes over what another rank has reduced for this one.
void SharedReducer::take_back(std::size_t unit) {
  const Stopwatch watch(unit_exposed_[unit]);
  // It takes no longer than reducing does, unless that rank has died or stands still, which the
  // wait notices; but that is for all ranks, which may still be busy with other things.
  const auto usual = base::Deadline::after(kLongReduction);
  while (!claims_->is_done(unit, round_) && !usual.passed()) std::this_thread::sleep_for(kPause);
  if (!claims_->is_done(unit, round_)) {
    board_->wait(consumed_ + unit, round_, "reduce_scatter", tag_of(unit));
  }
  for (std::size_t i = 0; i < units_[unit].parameters.size(); ++i) {
    if (!lent_any_[unit][i]) continue;
    const at::Tensor users = shards_[unit][i].grad();  // set since the part was offered
    attach(unit, i);
    if (users.defined() && !own_[unit].holds(users)) shards_[unit][i].mutable_grad().add_(users);
  }
}

void SharedReducer::count_read(std::size_t unit, std::size_t parameter, layout::Range range) {
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::int64_t place = places(rank, unit)[parameter];
    if (rank == group_.rank() || place == kNone) continue;
    const FlatUnit& flat = units_[unit];
    const at::ScalarType its = is_exact(place) ? flat.exact_dtype() : flat.dtype();
    counts_[unit].bytes_read += range.size() * FlatUnit::bytes_of(its);
  }
}

void SharedReducer::reduce_range(std::size_t unit, std::size_t parameter, layout::Range range,
                                 const Target& out, bool accumulate) {
  if (range.empty()) return;
  const Stopwatch watch(reduction_seconds_);
  Temporaries temporaries;
  const at::ScalarType from = collect_parts(unit, parameter, range, temporaries);
  if (reduces_to(from, out.dtype)) return add_up(from, out, range.size(), accumulate);
  const at::Tensor sum =
      at::empty({range.size()}, c10::isReducedFloatingType(from) ? at::ScalarType::Float : from);
  add_up(from, {static_cast<std::byte*>(sum.mutable_data_ptr()), sum.scalar_type()}, range.size(),
         /*accumulate=*/false);
  at::Tensor target = at::from_blob(out.memory, {range.size()}, out.dtype);
  accumulate ? target.add_(sum) : target.copy_(sum);
}

// What parts_ points at.
void SharedReducer::add_up(at::ScalarType from, const Target& out, std::int64_t count,
                           bool accumulate) const {
  const bool mean = divide_factor_ == 0;
  const comm::ReduceOp op = mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
  const double scale = mean ? 1 : 1 / divide_factor_;
  const auto reduce = accumulate ? comm::add_reduced_parts : comm::reduce_parts_to;
  reduce(parts_, to_dtype(from, "a gradient"), out.memory, to_dtype(out.dtype, "a gradient"), count,
         op, scale);
}

// Points parts_ at the same range of every rank's gradient, all of one dtype, which is returned.
// `temporaries` stand for ranks that have none or, where others' are exact, no exact one.
at::ScalarType SharedReducer::collect_parts(std::size_t unit, std::size_t parameter,
                                            layout::Range range, Temporaries& temporaries) {
  const FlatUnit& flat = units_[unit];
  bool exact = false;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::int64_t place = places(rank, unit)[parameter];
    exact = exact || (place != kNone && is_exact(place));
  }
  const at::ScalarType dtype = exact ? flat.exact_dtype() : flat.dtype();
  at::Tensor zeros;
  parts_.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::int64_t place = places(rank, unit)[parameter];
    if (place == kNone) {
      if (!zeros.defined()) temporaries.push_back(zeros = at::zeros({range.size()}, dtype));
      parts_.push_back(zeros.const_data_ptr());
      continue;
    }
    const at::ScalarType its = is_exact(place) ? flat.exact_dtype() : flat.dtype();
    std::byte* part = memory_->at(rank, offset_at(place) + range.begin * FlatUnit::bytes_of(its));
    if (its != dtype) {
      temporaries.push_back(at::from_blob(part, {range.size()}, its).to(dtype));
      part = static_cast<std::byte*>(temporaries.back().mutable_data_ptr());
    }
    parts_.push_back(part);
  }
  return dtype;
}

}  // namespace fullshard::shard
