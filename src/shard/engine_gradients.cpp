#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/error.h"
#include "shard/engine.h"

namespace fullshard::shard {

void Engine::zero_grad() {
  if (!watch_->is_inside()) reducer_->discard_unsynchronised();
  for (state::ShardedTensor& shard : shards_) shard.tensor.mutable_grad() = at::Tensor();
}

void Engine::drop_gradient(std::size_t index) {
  shards_[index].tensor.mutable_grad() = at::Tensor();
  reducer_->discard_unsynchronised(places_[index].unit, places_[index].parameter);
}

void Engine::clear_gradient(std::size_t index) {
  const at::Tensor& gradient = shards_[index].tensor.grad();
  if (gradient.defined()) gradient.zero_();
  reducer_->zero_unsynchronised(places_[index].unit, places_[index].parameter);
}

// module->zero_grad() drops placeholders, an optimizer's zero_grad() the shards' gradients: in
// either case unsharded training would begin with none, while here passes without sync may have
// left some. That a shard has no gradient tells only where it had one.
void Engine::clear_where_user_did() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& parameter = units_[places_[i].unit].parameters[places_[i].parameter].tensor;
    const bool dropped_here = !parameter.grad().defined();
    if (dropped_here) parameter.mutable_grad() = placeholders_[i];
    const bool dropped_there = had_gradient_[i] && !shards_[i].tensor.grad().defined();
    if (dropped_here || dropped_there) drop_gradient(i);
  }
}

// module->to() and set_data give a parameter other memory, which no update would ever reach.
void Engine::require_paged(std::size_t index) const {
  const auto [unit, parameter] = places_[index];
  const at::Tensor& tensor = units_[unit].parameters[parameter].tensor;
  if (residency::paged_storage(tensor) == units_[unit].storages[parameter].get()) return;
  if (!scope_masters_.empty() && scope_masters_[unit].defined()) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("a backward pass reached parameter '{}' while an unsharded() scope "
                    "shows it in the dtype of its shards; close the scope before "
                    "training goes on",
                    shards_[index].name));
  }
  throw base::Error(
      base::ErrorCode::kMisuse,
      fmt::format("parameter '{}' was given other memory after fully_shard, for instance by "
                  "module->to(), so it is not sharded any more and would never be trained; convert "
                  "the model before fully_shard",
                  shards_[index].name));
}

void Engine::take_gradient(std::size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  rethrow_kept_error();
  require_paged(index);
  accounted([&] {
    // A pass that reads no sharded unit would leave the update open while it waits for the others.
    catch_up();
    note_backward();
    reducer_->add(places_[index].unit, places_[index].parameter, gradient);
  });
}

void Engine::end_of_backward() {
  const at::NoGradGuard no_grad;
  pager_->end_step();
  accounted([&] { reducer_->finish_pass(); });
  note_gradients();
  end_step();
}

void Engine::note_gradients() {
  if (!reducer_->holds_unsynchronised()) {
    std::fill(had_gradient_.begin(), had_gradient_.end(), false);
    return;
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    had_gradient_[i] = shards_[i].tensor.grad().defined();
  }
}

}  // namespace fullshard::shard
