#include "shard/gradient_reducer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/comm/reduce.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kLine = 64;  // bytes; ranks write their own rows without sharing cache lines

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t trainable_count(const FlatUnit& unit) {
  return std::count_if(unit.parameters.begin(), unit.parameters.end(),
                       [](const FoundParameter& found) { return found.tensor.requires_grad(); });
}

}  // namespace

GradientReducer::GradientReducer(comm::Group& group, std::vector<FlatUnit>& units,
                                 comm::SignalBoard& board)
    : group_(group),
      units_(units),
      board_(board),
      ready_(0),
      consumed_(units.size()),
      begun_(units.size(), false),
      remaining_(units.size(), -1),
      posted_(units.size(), false),
      held_(units.size()),
      counts_(units.size()),
      unit_exposed_(units.size(), 0) {
  for (const FlatUnit& unit : units_) {
    notice_offset_.push_back(notice_row_);
    const auto parameters = static_cast<std::int64_t>(unit.parameters.size());
    notice_row_ += round_up(static_cast<std::int64_t>(sizeof(Notice)) + parameters, kLine);
    // Twice the sum of all units: room for first-fit to leave gaps. Untouched pages cost nothing.
    arena_row_ += 2 * round_up(unit.layout.flat_bytes(), kLine) + kLine;
  }
  arena_row_ = round_up(arena_row_, 4096);
  const auto ranks = static_cast<std::int64_t>(group.size());
  notices_ = group.allocate_shared(static_cast<std::size_t>(std::max(notice_row_ * ranks, kLine)),
                                   "gradient notices");
  memory_ = group.allocate_shared(static_cast<std::size_t>(std::max(arena_row_ * ranks, kLine)),
                                  "gradient arena");
  arena_ = GradientArena(arena_row_);
}

GradientReducer::Notice& GradientReducer::notice(int rank, std::size_t unit) const {
  std::byte* at = notices_->data() + rank * notice_row_ + notice_offset_[unit];
  return *reinterpret_cast<Notice*>(at);
}

std::uint8_t* GradientReducer::has_gradient(int rank, std::size_t unit) const {
  return reinterpret_cast<std::uint8_t*>(&notice(rank, unit) + 1);
}

std::byte* GradientReducer::part(int rank, std::size_t unit) const {
  return memory_->data() + rank * arena_row_ + notice(rank, unit).offset;
}

void GradientReducer::collect() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (held_[unit].offset == -1) continue;
    if (!board_.reached(consumed_ + unit, held_[unit].round)) continue;
    arena_.free(std::exchange(held_[unit].offset, -1));
  }
}

void GradientReducer::begin_round() {
  if (in_round_) return;
  in_round_ = true;
  ++round_;
  std::fill(begun_.begin(), begun_.end(), false);
  std::fill(posted_.begin(), posted_.end(), false);
}

// A round's notice and region replace the last one's only after every rank has read those.
void GradientReducer::begin_unit(std::size_t unit, bool with_region) {
  if (begun_[unit]) return;
  {
    const Stopwatch watch(exposed_seconds_);
    const Stopwatch unit_watch(unit_exposed_[unit]);
    board_.wait(consumed_ + unit, round_ - 1, "reduce_scatter",
                {units_[unit].name, static_cast<std::int64_t>(round_) - 1});
  }
  collect();
  FlatUnit& flat = units_[unit];
  if (!flat.gradient.defined()) flat.gradient = at::empty({flat.own.size()}, flat.dtype());
  if (with_region && !is_direct()) {
    held_[unit] = {arena_.allocate(units_[unit].layout.flat_bytes()), round_};
    FULLSHARD_CHECK(held_[unit].offset != -1);
  }
  notice(group_.rank(), unit).offset =
      with_region ? std::max<std::int64_t>(held_[unit].offset, 0) : -1;
  std::memset(has_gradient(group_.rank(), unit), 0, units_[unit].parameters.size());
  begun_[unit] = true;
}

void GradientReducer::add(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  if (in_round_ && posted_[unit]) finish_round();
  begin_round();
  begin_unit(unit, /*with_region=*/true);
  if (remaining_[unit] <= 0) remaining_[unit] = trainable_count(units_[unit]);
  const auto& placed = units_[unit].layout.parameters()[parameter];
  std::byte* memory = is_direct()
                          ? static_cast<std::byte*>(units_[unit].gradient.mutable_data_ptr())
                          : part(group_.rank(), unit);
  memory += placed.offset * units_[unit].element_bytes();
  const at::Tensor target = at::from_blob(memory, placed.spec.shape, units_[unit].dtype());
  std::uint8_t& has = has_gradient(group_.rank(), unit)[parameter];
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  // Something is there from an earlier pass without sync or, without other ranks, any earlier pass.
  const bool adds = has != 0 || (is_direct() && holds_gradient(unit, parameter));
  has = 1;
  if (adds) {
    target.add_(dense);
  } else {
    target.copy_(dense);
  }
  if (--remaining_[unit] == 0 && sync_) {
    complete_unit(unit);
    poll();
  }
}

void GradientReducer::complete_unit(std::size_t unit) {
  if (notice(group_.rank(), unit).offset != -1 && !is_direct()) zero_missing(unit);
  posted_[unit] = true;
  board_.post(ready_ + unit, round_);
  pending_.push_back(unit);
}

void GradientReducer::poll() {
  const Stopwatch watch(exposed_seconds_);
  std::erase_if(pending_, [&](std::size_t unit) {
    if (!board_.reached(ready_ + unit, round_)) return false;
    reduce(unit);
    return true;
  });
}

void GradientReducer::finish_pass() {
  std::fill(remaining_.begin(), remaining_.end(), -1);
  if (in_round_ && sync_) finish_round();
}

void GradientReducer::finish_round() {
  const Stopwatch watch(exposed_seconds_);
  complete_rest();
  for (const std::size_t unit : std::exchange(pending_, {})) {
    const Stopwatch unit_watch(unit_exposed_[unit]);
    board_.wait(ready_ + unit, round_, "reduce_scatter",
                {units_[unit].name, static_cast<std::int64_t>(round_)});
    reduce(unit);
  }
  in_round_ = false;
  collect();
}

void GradientReducer::complete_rest() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (posted_[unit]) continue;
    begin_unit(unit, /*with_region=*/false);
    complete_unit(unit);
  }
}

void GradientReducer::abandon_round() {
  if (!in_round_) return;
  std::fill(remaining_.begin(), remaining_.end(), -1);
  if (std::find(posted_.begin(), posted_.end(), true) == posted_.end()) {
    discard_unsynchronised();
    return;
  }
  throw base::Error(
      base::ErrorCode::kMisuse,
      "a backward pass ended with an exception after some gradients had been handed to "
      "the other ranks; this rank's gradients cannot be completed, so the job must stop",
      group_.rank());
}

void GradientReducer::discard_unsynchronised() {
  const bool in_pass = std::any_of(remaining_.begin(), remaining_.end(),
                                   [](std::int64_t count) { return count != -1; });
  if (!in_round_ || in_pass) return;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!begun_[unit]) continue;
    std::memset(has_gradient(group_.rank(), unit), 0, units_[unit].parameters.size());
  }
}

void GradientReducer::zero_missing(std::size_t unit) {
  const std::uint8_t* has = has_gradient(group_.rank(), unit);
  const std::int64_t element = units_[unit].element_bytes();
  for (std::size_t i = 0; i < units_[unit].parameters.size(); ++i) {
    const auto& placed = units_[unit].layout.parameters()[i];
    if (has[i] != 0) continue;
    std::memset(part(group_.rank(), unit) + placed.offset * element, 0,
                static_cast<std::size_t>(placed.numel * element));
  }
}

bool GradientReducer::anyone_has(std::size_t unit, std::size_t parameter) const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (has_gradient(rank, unit)[parameter] != 0) return true;
  }
  return false;
}

bool GradientReducer::anyone_has(std::size_t unit) const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (notice(rank, unit).offset != -1) return true;
  }
  return false;
}

void GradientReducer::reduce(std::size_t unit) {
  if (!anyone_has(unit)) {
    board_.post(consumed_ + unit, round_);
    return;
  }
  FlatUnit& flat = units_[unit];
  // Neighbours that are treated alike are reduced in one run; padding between them is inside a run.
  layout::Range run;
  std::size_t run_last = 0;
  bool run_accumulates = false;
  for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
    if (!anyone_has(unit, i)) continue;
    const bool accumulate = holds_gradient(unit, i);
    if (!accumulate) attach(unit, i);
    const layout::Range owned = flat.own_range(i);
    if (owned.empty() || is_direct()) continue;
    const std::int64_t offset = flat.layout.parameters()[i].offset;
    const layout::Range range = {offset + owned.begin, offset + owned.end};
    const bool joins = !run.empty() && accumulate == run_accumulates && i == run_last + 1;
    if (!joins) {
      reduce_run(unit, run, run_accumulates);
      run = {range.begin, range.begin};
    }
    run.end = range.end;
    run_last = i;
    run_accumulates = accumulate;
  }
  reduce_run(unit, run, run_accumulates);
  ++counts_[unit].reductions;
  board_.post(consumed_ + unit, round_);
}

// Makes the parameter's part of the reduced gradient the .grad of its shard.
void GradientReducer::attach(std::size_t unit, std::size_t parameter) {
  // Not a view in autograd's eyes: torch::optim::Optimizer::zero_grad detaches gradients in place.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const FlatUnit& flat = units_[unit];
  const layout::Range owned = flat.own_range(parameter);
  const std::int64_t begin =
      flat.layout.parameters()[parameter].offset + owned.begin - flat.own.begin;
  shards_[unit][parameter].mutable_grad() =
      flat.gradient.narrow(0, owned.empty() ? 0 : begin, owned.size());
}

// Whether the shard has a gradient to add to. One that the user has set is taken over.
bool GradientReducer::holds_gradient(std::size_t unit, std::size_t parameter) {
  const at::Tensor users = shards_[unit][parameter].grad();
  if (!users.defined()) return false;
  if (!users.is_alias_of(units_[unit].gradient)) {
    attach(unit, parameter);
    shards_[unit][parameter].mutable_grad().copy_(users);
  }
  return true;
}

void GradientReducer::reduce_run(std::size_t unit, layout::Range run, bool accumulate) {
  if (run.empty()) return;
  FlatUnit& flat = units_[unit];
  const std::int64_t bytes = flat.element_bytes();
  at::Tensor zeros;  // stands for ranks that did not use the unit in this round
  std::vector<const void*> parts;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (notice(rank, unit).offset != -1) {
      parts.push_back(part(rank, unit) + run.begin * bytes);
      if (rank != group_.rank()) counts_[unit].bytes_read += run.size() * bytes;
    } else {
      if (!zeros.defined()) zeros = at::zeros({run.size()}, flat.dtype());
      parts.push_back(zeros.const_data_ptr());
    }
  }
  auto* out = static_cast<std::byte*>(flat.gradient.mutable_data_ptr()) +
              (run.begin - flat.own.begin) * bytes;
  const base::DType dtype = flat.layout.dtype();
  const bool mean = divide_factor_ == 0;
  const comm::ReduceOp op = mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
  const double scale = mean ? 1 : 1 / divide_factor_;
  if (accumulate) {
    comm::add_reduced_parts(parts, dtype, out, dtype, run.size(), op, scale);
  } else {
    comm::reduce_parts_to(parts, dtype, out, dtype, run.size(), op, scale);
  }
}

std::int64_t GradientReducer::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const bool any = std::any_of(shards_[unit].begin(), shards_[unit].end(),
                                 [](const at::Tensor& shard) { return shard.grad().defined(); });
    if (any) bytes += static_cast<std::int64_t>(units_[unit].gradient.nbytes());
  }
  return bytes;
}

}  // namespace fullshard::shard
