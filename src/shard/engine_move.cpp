#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

#include "fullshard/base/error.h"
#include "shard/engine.h"
#include "shard/gather_owned.h"
#include "shard/lay_out.h"
#include "shard/unit_move.h"

namespace fullshard::shard {

// What this rank is to have, made before anything is changed.
struct Engine::Moved {
  std::vector<FlatUnit> units;                              // as they are to be cut
  std::vector<at::Tensor> owned;                            // by unit, in the dtype of its shards
  std::vector<at::Tensor> held;                             // by unit, in the dtype of gathers
  std::vector<std::vector<std::vector<at::Tensor>>> state;  // by follower, shard and kind
};

void Engine::move_shards(const std::vector<double>& weights,
                         std::span<state::ElementState* const> followers) {
  const at::NoGradGuard no_grad;
  require_movable();
  FullyShardOptions options = options_;
  options.shard_weights = weights;
  Moved moved{.units = cut_again(options), .owned = {}, .held = {}, .state = {}};
  end_update();
  move_values(moved);
  for (state::ElementState* follower : followers) move_state(moved, *follower);
  begin_update();
  options_.shard_weights = weights;  // not all of them: parameters refer to their rules
  take(std::move(moved), followers);
}

void Engine::require_movable() const {
  require_no_scope();
  if (watch_->is_inside() || reducer_->holds_unsynchronised()) {
    throw base::Error(base::ErrorCode::kMisuse,
                      "shards cannot be moved in a backward pass, nor while passes without "
                      "gradient sync wait for one with it; move them between steps");
  }
  for (const state::ShardedTensor& shard : shards_) {
    if (!shard.tensor.grad().defined()) continue;
    throw base::Error(base::ErrorCode::kMisuse,
                      fmt::format("shards cannot be moved while they have gradients, as '{}' has; "
                                  "call zero_grad() after the optimizer step and then move them",
                                  shard.name));
  }
}

std::vector<FlatUnit> Engine::cut_again(const FullyShardOptions& options) const {
  std::vector<FoundUnit> found;
  for (const FlatUnit& unit : units_) {
    found.push_back({.name = unit.name,
                     .picked = unit.picked,
                     .strategy = unit.strategy,
                     .whole = unit.layout.is_whole(),
                     .parameters = unit.parameters});
  }
  return lay_out(std::move(found), options, mesh_);
}

void Engine::move_values(Moved& moved) const {
  moved.owned.resize(units_.size());
  moved.held.resize(units_.size());
  const auto part = [](const at::Tensor& whole, layout::Range range) {
    return whole.narrow(0, range.begin, range.size());
  };
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u].has_masters() && memory_->shares_units()) continue;
    const at::Tensor whole = gather_masters(u);
    moved.owned[u] = part(whole, moved.units[u].own).clone();
    moved.held[u] = part(whole, moved.units[u].held).to(units_[u].dtype()).clone();
  }
}

void Engine::move_state(Moved& moved, state::ElementState& follower) const {
  const auto now = follower.tensors(shards_);
  std::vector<std::string> names;
  for (const state::ShardedTensor& shard : shards_) names.push_back(shard.name);
  require_same_on_all(*mesh_.all, now, names, follower.name());
  auto then = now;
  std::size_t first = 0;  // of the unit's shards
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const std::size_t count = units_[u].parameters.size();
    for (std::size_t kind = 0; count > 0 && kind < now[first].size(); ++kind) {
      std::vector<at::Tensor> parts;
      for (std::size_t i = 0; i < count; ++i) parts.push_back(now[first + i][kind]);
      const auto to = move_elements(mesh_, units_[u], moved.units[u], parts,
                                    {units_[u].name, gate_->version()});
      for (std::size_t i = 0; i < count; ++i) then[first + i][kind] = to[i];
    }
    first += count;
  }
  moved.state.push_back(std::move(then));
}

void Engine::take(Moved moved, std::span<state::ElementState* const> followers) {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].layout = std::move(moved.units[u].layout);
    units_[u].held = moved.units[u].held;
    units_[u].own = moved.units[u].own;
    units_[u].pieces = std::move(moved.units[u].pieces);
  }
  memory_->move(moved.held);
  masters_->move(moved.owned);
  const residency::BypassScope bypass;
  for (std::size_t index = 0; index < shards_.size(); ++index) {
    const auto [unit, parameter] = places_[index];
    state::ShardedTensor& shard = shards_[index];
    const layout::Range owned = units_[unit].own_range(parameter);
    shard.begin = owned.begin;
    shard.end = owned.end;
    residency::paged_storage(shard.tensor)->orphan();
    shard.tensor.set_data(make_shard(unit, parameter));
  }
  reducer_->move();
  for (std::size_t f = 0; f < followers.size(); ++f) {
    followers[f]->replace(shards_, std::move(moved.state[f]));
  }
  ++shard_moves_;
}

}  // namespace fullshard::shard
