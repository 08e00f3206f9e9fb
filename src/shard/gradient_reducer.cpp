#include "shard/gradient_reducer.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fullshard/base/error.h"
#include "shard/hosts_reducer.h"
#include "shard/message_reducer.h"
#include "shard/shared_reducer.h"
#include "shard/stopwatch.h"

namespace fullshard::shard {
namespace {

std::int64_t trainable_count(const FlatUnit& unit) {
  return std::count_if(unit.parameters.begin(), unit.parameters.end(),
                       [](const FoundParameter& found) { return found.tensor.requires_grad(); });
}

}  // namespace

// Besides us only the node that stores it refers to it, and to its memory only what it is a view
// of, as the gradient of a linear layer's weight is, which is transposed.
bool is_only_ours(const at::Tensor& gradient) {
  if (gradient.use_count() > 2 || gradient.requires_grad() || gradient.is_sparse()) return false;
  const bool of_base = gradient.is_view() && gradient._base().use_count() == 1;
  return gradient.storage().use_count() == (of_base ? 2 : 1);
}

at::Tensor to_dense(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.to_dense() : gradient;
}

double scale_of_mean(const comm::Group& all, const GradientReducer::Options& options) {
  return options.divide_factor == 0 ? 1 : all.size() / options.divide_factor;
}

std::int64_t all_reduce_bytes(const comm::Group& group, std::int64_t bytes) {
  return 2 * (group.size() - 1) * bytes / group.size();
}

std::unique_ptr<GradientReducer> GradientReducer::make(const comm::Mesh& mesh,
                                                       std::vector<FlatUnit>& units,
                                                       const Options& options) {
  if (mesh.all->shares_memory() && !options.hook) {
    return std::make_unique<SharedReducer>(*mesh.all, units, options);
  }
  if (mesh.shard->shares_memory() && mesh.shard->size() > 1 && !options.hook) {
    return std::make_unique<HostsReducer>(mesh, units, options);
  }
  return std::make_unique<MessageReducer>(mesh, units, options);
}

GradientReducer::GradientReducer(std::vector<FlatUnit>& units, int rank)
    : units_(units),
      shards_(units.size()),
      counts_(units.size()),
      unit_exposed_(units.size(), 0),
      rank_(rank),
      begun_(units.size(), false),
      remaining_(units.size(), -1),
      handed_over_(units.size(), false),
      has_earlier_(units.size(), false) {
  for (const FlatUnit& unit : units_) own_.emplace_back(unit);
}

void GradientReducer::move() {
  own_.clear();
  for (const FlatUnit& unit : units_) own_.emplace_back(unit);
}

void GradientReducer::begin_round() {
  if (in_round_) return;
  in_round_ = true;
  ++round_;
  std::fill(begun_.begin(), begun_.end(), false);
  std::fill(handed_over_.begin(), handed_over_.end(), false);
  std::fill(has_earlier_.begin(), has_earlier_.end(), false);
}

void GradientReducer::begin_unit(std::size_t unit) {
  if (begun_[unit]) return;
  enter_unit(unit);
  begun_[unit] = true;
}

void GradientReducer::add(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) {
  if (in_round_ && handed_over_[unit]) finish_round();
  begin_round();
  begin_unit(unit);
  if (remaining_[unit] <= 0) remaining_[unit] = trainable_count(units_[unit]);
  keep(unit, parameter, gradient);
  if (--remaining_[unit] == 0 && sync_ && hands_over_early()) {
    mark_handed_over(unit);
    hand_over(unit);
    poll();
  }
}

void GradientReducer::release_unused() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    // After an exception another rank may still be writing there.
    if (in_round_ && handed_over_[unit]) continue;
    const auto is_its_gradient = [&](const at::Tensor& shard) {
      return shard.grad().defined() && own_[unit].holds(shard.grad());
    };
    own_[unit].release_unless_held(
        std::any_of(shards_[unit].begin(), shards_[unit].end(), is_its_gradient));
  }
}

void GradientReducer::finish_pass() {
  std::fill(remaining_.begin(), remaining_.end(), -1);
  if (in_round_ && sync_) return finish_round();
  if (in_round_) has_earlier_ = begun_;
}

void GradientReducer::finish_round() {
  const Stopwatch watch(exposed_seconds_);
  std::vector<std::size_t> rest;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!handed_over_[unit]) rest.push_back(unit);
  }
  for (const std::size_t unit : rest) begin_unit(unit);
  for (const std::size_t unit : rest) mark_handed_over(unit);
  hand_over_rest(rest);
  finish_units();
  in_round_ = false;
}

void GradientReducer::abandon_round() {
  if (!in_round_) return;
  if (gives_directly()) {
    std::fill(remaining_.begin(), remaining_.end(), -1);
    return finish_round();
  }
  if (std::find(handed_over_.begin(), handed_over_.end(), true) != handed_over_.end()) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        "a backward pass ended with an exception after some gradients had been handed to "
        "the other ranks; this rank's gradients cannot be completed, so the job must stop",
        rank_);
  }
  const auto is_touched = [&](std::size_t unit) { return remaining_[unit] != -1; };
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (!is_touched(unit) || !has_earlier_[unit] || !keeps_any(unit)) continue;
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format(
            "a backward pass ended with an exception after it had added gradients of '{}' "
            "to those of earlier passes without sync, which cannot be told apart any more; "
            "call zero_grad() of the sharded model or of the module, and begin the step anew",
            units_[unit].name),
        rank_);
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (is_touched(unit)) forget(unit);
  }
  std::fill(remaining_.begin(), remaining_.end(), -1);
}

bool GradientReducer::keeps_any(std::size_t unit) {
  for (std::size_t i = 0; i < units_[unit].parameters.size(); ++i) {
    if (kept(unit, i).defined()) return true;
  }
  return false;
}

void GradientReducer::discard_unsynchronised() {
  std::fill(remaining_.begin(), remaining_.end(), -1);
  std::fill(has_earlier_.begin(), has_earlier_.end(), false);
  for (std::size_t unit = 0; unit < units_.size() && in_round_; ++unit) {
    if (begun_[unit] && !handed_over_[unit]) forget(unit);
  }
}

void GradientReducer::discard_unsynchronised(std::size_t unit, std::size_t parameter) {
  if (holds_unsynchronised(unit)) forget(unit, parameter);
}

void GradientReducer::zero_unsynchronised(std::size_t unit, std::size_t parameter) {
  if (!holds_unsynchronised(unit)) return;
  if (const at::Tensor gradient = kept(unit, parameter); gradient.defined()) gradient.zero_();
}

void GradientReducer::count_held(std::int64_t bytes) {
  held_bytes_ += bytes;
  peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
}

void GradientReducer::attach(std::size_t unit, std::size_t parameter) {
  shards_[unit][parameter].mutable_grad() = own_[unit].part(parameter);
}

bool GradientReducer::holds_gradient(std::size_t unit, std::size_t parameter) {
  const at::Tensor users = shards_[unit][parameter].grad();
  if (!users.defined()) return false;
  if (!own_[unit].holds(users)) {
    attach(unit, parameter);
    shards_[unit][parameter].mutable_grad().copy_(users);
  }
  return true;
}

void GradientReducer::store_means(const Bucket& bucket, std::byte* means, double scale) {
  for (const CompleteUnit& complete : bucket) {
    store_mean(complete, means, scale);
    means += units_[complete.unit].own_reduce_bytes();
  }
}

void GradientReducer::store_mean(const CompleteUnit& complete, std::byte* mean, double scale) {
  const std::size_t unit = complete.unit;
  const FlatUnit& flat = units_[unit];
  for (std::size_t i = 0; i < complete.any.size(); ++i) {
    if (complete.any[i] == 0) continue;
    const bool accumulate = holds_gradient(unit, i);
    if (!accumulate) attach(unit, i);
    const layout::Range owned = flat.own_range(i);
    if (owned.empty()) continue;
    const at::Tensor values = at::from_blob(mean + flat.own_offset(i) * flat.reduce_element_bytes(),
                                            {owned.size()}, flat.reduce_dtype());
    at::Tensor& gradient = shards_[unit][i].mutable_grad();
    if (accumulate) {
      gradient.add_(values, scale);
    } else {
      gradient.copy_(values);
      if (scale != 1) gradient.mul_(scale);
    }
  }
}

std::int64_t GradientReducer::collectives() const {
  std::int64_t reductions = 0;
  for (const UnitReduction& unit : counts_) reductions += unit.reductions;
  return reductions;
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
