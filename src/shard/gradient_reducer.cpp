#include "shard/gradient_reducer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/comm/reduce.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kLine = 64;  // bytes; ranks write their own rows without sharing cache lines
constexpr std::int64_t kNone = -1;  // the place of a gradient that a rank does not have

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t trainable_count(const FlatUnit& unit) {
  return std::count_if(unit.parameters.begin(), unit.parameters.end(),
                       [](const FoundParameter& found) { return found.tensor.requires_grad(); });
}

// Whether a gradient that autograd is about to store may be kept without a copy: besides us only
// the node that stores it refers to it, and to its memory only what it is a view of, as the
// gradient of a linear layer's weight is, which is transposed.
bool is_only_ours(const at::Tensor& gradient) {
  if (gradient.use_count() > 2 || gradient.requires_grad() || gradient.is_sparse()) return false;
  const bool of_base = gradient.is_view() && gradient._base().use_count() == 1;
  return gradient.storage().use_count() == (of_base ? 2 : 1);
}

at::Tensor to_dense(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.to_dense() : gradient;
}

// The gradient seen so that its row-major order is the storage order of the parameter, in which
// ranks own ranges of it.
at::Tensor as_stored(const FlatUnit& unit, std::size_t parameter, const at::Tensor& gradient) {
  const std::int64_t dimension = unit.cut_dimension(parameter);
  return dimension == 0 ? gradient : to_dense(gradient).movedim(dimension, 0);
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
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::size_t parameters = units_[u].parameters.size();
    held_[u].gradients.resize(parameters);
    notice_offset_.push_back(notice_row_);
    notice_row_ += round_up(static_cast<std::int64_t>(parameters * sizeof(std::int64_t)), kLine);
  }
  const std::int64_t bytes = std::max(notice_row_ * group.size(), kLine);
  notices_ = group.allocate_shared(static_cast<std::size_t>(bytes), "gradient notices");
  memory_ = StepMemory::make(group, units_);
}

std::span<std::int64_t> GradientReducer::places(int rank, std::size_t unit) const {
  std::byte* at = notices_->data() + rank * notice_row_ + notice_offset_[unit];
  return {reinterpret_cast<std::int64_t*>(at), units_[unit].parameters.size()};
}

void GradientReducer::collect() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (held_[unit].round == 0) continue;
    if (board_.reached(consumed_ + unit, held_[unit].round)) let_go(unit);
  }
}

void GradientReducer::let_go(std::size_t unit) {
  held_[unit].round = 0;
  for (at::Tensor& gradient : held_[unit].gradients) {
    if (!gradient.defined()) continue;
    held_bytes_ -= static_cast<std::int64_t>(gradient.nbytes());
    gradient.reset();
  }
}

void GradientReducer::begin_round() {
  if (in_round_) return;
  in_round_ = true;
  ++round_;
  std::fill(begun_.begin(), begun_.end(), false);
  std::fill(posted_.begin(), posted_.end(), false);
}

// A round's notice replaces the last one's only after every rank has read that.
void GradientReducer::begin_unit(std::size_t unit) {
  if (begun_[unit]) return;
  {
    const Stopwatch watch(exposed_seconds_);
    const Stopwatch unit_watch(unit_exposed_[unit]);
    board_.wait(consumed_ + unit, round_ - 1, "reduce_scatter",
                {units_[unit].name, static_cast<std::int64_t>(round_) - 1});
  }
  collect();
  std::ranges::fill(places(group_.rank(), unit), kNone);
  begun_[unit] = true;
}

void GradientReducer::add(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  if (in_round_ && posted_[unit]) finish_round();
  begin_round();
  begin_unit(unit);
  if (remaining_[unit] <= 0) remaining_[unit] = trainable_count(units_[unit]);
  if (is_direct()) {
    give(unit, parameter, gradient);
  } else {
    hold(unit, parameter, gradient);
  }
  if (--remaining_[unit] == 0 && sync_) {
    complete_unit(unit);
    poll();
  }
}

void GradientReducer::release_unused() {
  for (FlatUnit& unit : units_) {
    if (!unit.gradient.defined() || unit.gradient.storage().use_count() > 1) continue;
    unit.gradient.reset();
  }
}

// Keeps a gradient where the other ranks can read it: as it is, if it was made there and is nobody
// else's, otherwise a copy.
void GradientReducer::hold(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  std::int64_t& place = places(group_.rank(), unit)[parameter];
  at::Tensor& held = held_[unit].gradients[parameter];
  if (place != kNone) {  // from an earlier pass without sync
    held.add_(as_stored(units_[unit], parameter, gradient));
    return;
  }
  const bool owned = gradient.is_sparse() || is_only_ours(gradient);
  const at::Tensor dense = as_stored(units_[unit], parameter, to_dense(gradient));
  const at::ScalarType dtype = units_[unit].dtype();
  const bool here = memory_->offset_of(dense.const_data_ptr()) != kNone;
  if (here && owned && dense.is_contiguous() && dense.scalar_type() == dtype) {
    held = dense.detach();
  } else {
    held = memory_->make_copy(dtype, dense.sizes());
    held.copy_(dense);
    copied_bytes_ += static_cast<std::int64_t>(held.nbytes());
  }
  held_[unit].round = round_;
  held_bytes_ += static_cast<std::int64_t>(held.nbytes());
  peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  place = held.numel() == 0 ? 0 : memory_->offset_of(held.const_data_ptr());
}

// Without other ranks a gradient is the shard's, as autograd would have stored it.
void GradientReducer::give(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  places(group_.rank(), unit)[parameter] = 0;
  at::Tensor& mine = shards_[unit][parameter].mutable_grad();
  const at::ScalarType mine_dtype = units_[unit].dtype();
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

void GradientReducer::complete_unit(std::size_t unit) {
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
  memory_->trim();
}

void GradientReducer::complete_rest() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (posted_[unit]) continue;
    begin_unit(unit);
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
    std::ranges::fill(places(group_.rank(), unit), kNone);
    let_go(unit);
  }
}

bool GradientReducer::anyone_has(std::size_t unit, std::size_t parameter) const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (places(rank, unit)[parameter] != kNone) return true;
  }
  return false;
}

bool GradientReducer::anyone_has(std::size_t unit) const {
  for (std::size_t i = 0; i < units_[unit].parameters.size(); ++i) {
    if (anyone_has(unit, i)) return true;
  }
  return false;
}

void GradientReducer::reduce(std::size_t unit) {
  if (anyone_has(unit)) ++counts_[unit].reductions;
  for (std::size_t i = 0; i < units_[unit].parameters.size() && !is_direct(); ++i) {
    if (!anyone_has(unit, i)) continue;
    const bool accumulate = holds_gradient(unit, i);
    if (!accumulate) attach(unit, i);
    reduce_own(unit, i, accumulate);
  }
  board_.post(consumed_ + unit, round_);
}

// Makes the parameter's part of the reduced gradient the .grad of its shard.
void GradientReducer::attach(std::size_t unit, std::size_t parameter) {
  // Not a view in autograd's eyes: torch::optim::Optimizer::zero_grad detaches gradients in place.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  FlatUnit& flat = units_[unit];
  if (!flat.gradient.defined()) flat.gradient = at::empty({flat.own.size()}, flat.dtype());
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
  const at::Tensor& flat = units_[unit].gradient;
  if (!flat.defined() || !users.is_alias_of(flat)) {
    attach(unit, parameter);
    shards_[unit][parameter].mutable_grad().copy_(users);
  }
  return true;
}

void GradientReducer::reduce_own(std::size_t unit, std::size_t parameter, bool accumulate) {
  FlatUnit& flat = units_[unit];
  const layout::Range owned = flat.own_range(parameter);
  if (owned.empty()) return;
  const std::int64_t begin =
      flat.layout.parameters()[parameter].offset + owned.begin - flat.own.begin;
  auto* out =
      static_cast<std::byte*>(flat.gradient.mutable_data_ptr()) + begin * flat.element_bytes();
  const base::DType dtype = flat.layout.dtype();
  const bool mean = divide_factor_ == 0;
  const comm::ReduceOp op = mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
  const double scale = mean ? 1 : 1 / divide_factor_;
  at::Tensor zeros;
  collect_parts(unit, parameter, owned, zeros);
  if (accumulate) {
    comm::add_reduced_parts(parts_, dtype, out, dtype, owned.size(), op, scale);
  } else {
    comm::reduce_parts_to(parts_, dtype, out, dtype, owned.size(), op, scale);
  }
}

// Points parts_ at the same range of every rank's gradient. `zeros` stands for ranks that have
// none.
void GradientReducer::collect_parts(std::size_t unit, std::size_t parameter, layout::Range range,
                                    at::Tensor& zeros) {
  const std::int64_t bytes = units_[unit].element_bytes();
  parts_.clear();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::int64_t place = places(rank, unit)[parameter];
    if (place != kNone) {
      parts_.push_back(memory_->at(rank, place + range.begin * bytes));
      if (rank != group_.rank()) counts_[unit].bytes_read += range.size() * bytes;
    } else {
      if (!zeros.defined()) zeros = at::zeros({range.size()}, units_[unit].dtype());
      parts_.push_back(zeros.const_data_ptr());
    }
  }
}

std::int64_t GradientReducer::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const std::vector<at::Tensor>& unit : shards_) {
    for (const at::Tensor& shard : unit) {
      if (shard.grad().defined()) bytes += static_cast<std::int64_t>(shard.grad().nbytes());
    }
  }
  return bytes;
}

}  // namespace fullshard::shard
