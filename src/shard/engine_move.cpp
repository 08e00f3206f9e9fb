#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

#include "fullshard/base/error.h"
#include "shard/checksum.h"
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

bool Engine::move_shards(const std::vector<double>& weights,
                         std::span<state::ElementState* const> followers) {
  const at::NoGradGuard no_grad;
  require_movable();
  require_same_weights(weights);
  FullyShardOptions options = options_;
  options.shard_weights = weights;
  Moved moved{.units = cut_again(options), .owned = {}, .held = {}, .state = {}};
  if (!cuts_differ(moved.units)) return false;
  end_update();
  reducer_->release_unused();
  move_values(moved);
  for (state::ElementState* follower : followers) move_state(moved, *follower);
  begin_update();
  options_.shard_weights = weights;  // not all of them: parameters refer to their rules
  take(std::move(moved), followers);
  return true;
}

// Ranks that cut otherwise would update some elements twice and others never.
void Engine::require_same_weights(const std::vector<double>& weights) const {
  const auto shards = static_cast<std::size_t>(mesh_.shard->size());
  if (!weights.empty() && weights.size() != shards) return;  // the layout says what is wrong
  const std::vector<double> given = weights.empty() ? std::vector<double>(shards, 1.0) : weights;
  if (ranks_unlike_rank0(*mesh_.all, given, {"weights", -1}).empty()) return;
  throw base::Error(base::ErrorCode::kMismatch,
                    "ranks want to cut by different weights; all have to pass the same");
}

bool Engine::cuts_differ(const std::vector<FlatUnit>& units) const {
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].pieces != units_[u].pieces) return true;
  }
  return false;
}

double Engine::owned_element_bytes() const {
  double bytes = 0;
  double elements = 0;
  for (const FlatUnit& unit : units_) {
    if (unit.replicated()) continue;
    const bool apart = unit.has_masters();
    const std::int64_t shard = apart || !memory_->shares_units() ? unit.shard_element_bytes() : 0;
    const std::int64_t gathered = apart && !memory_->shares_units() ? unit.element_bytes() : 0;
    const auto count = static_cast<double>(unit.layout.flat_size());
    bytes += count * static_cast<double>(shard + gathered + unit.shard_element_bytes());
    elements += count;
  }
  return elements == 0 ? 0 : bytes / elements;
}

void Engine::require_movable() {
  rethrow_kept_error();
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
    const bool apart = units_[u].has_masters();
    const bool private_here = !memory_->shares_units() && !units_[u].replicated();
    if (!apart && !private_here) continue;
    const at::Tensor whole = gather_masters(u);
    if (apart) moved.owned[u] = part(whole, moved.units[u].own).clone();
    if (private_here) {
      moved.held[u] = part(whole, moved.units[u].held).to(units_[u].dtype(), false, /*copy=*/true);
    }
  }
}

void Engine::move_state(Moved& moved, state::ElementState& follower) const {
  const auto now = follower.tensors(shards_);
  require_same_on_all(*mesh_.all, now, shards_, follower.name());
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
  std::vector<std::int64_t> gathers;
  for (std::size_t u = 0; u < units_.size(); ++u) gathers.push_back(pager_->residency(u).gathers);
  memory_->count_gathers(gathers);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].layout = std::move(moved.units[u].layout);
    units_[u].held = moved.units[u].held;
    units_[u].own = moved.units[u].own;
    units_[u].pieces = std::move(moved.units[u].pieces);
  }
  memory_->move(moved.held);
  masters_->move(moved.owned);
  const residency::BypassScope bypass;
  const c10::InferenceMode not_for_inference(false);
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
