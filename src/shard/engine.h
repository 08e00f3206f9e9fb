#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/comm/mesh.h"
#include "fullshard/residency/backward_watch.h"
#include "fullshard/residency/unit_pager.h"
#include "fullshard/shard/counters.h"
#include "fullshard/shard/options.h"
#include "fullshard/shard/sharded_module.h"
#include "fullshard/state/element_state.h"
#include "fullshard/state/sharded_tensor.h"
#include "shard/flat_unit.h"
#include "shard/gradient_placeholder.h"
#include "shard/gradient_reducer.h"
#include "shard/masters.h"
#include "shard/replica_updates.h"
#include "shard/unit_memory.h"
#include "shard/update_gate.h"

namespace fullshard::shard {

/// Everything behind a ShardedModule on one rank: the units with their memory, the pager that
/// brings them in, the gate between reading and updating, and the reducer of gradients.
class Engine {
 public:
  Engine(ModelTree model, const comm::Mesh& mesh, const FullyShardOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  const ModelTree& model() const { return model_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const FullyShardOptions& options() const { return options_; }
  const std::vector<FlatUnit>& units() const { return units_; }
  /// Parameters that a rule leaves alone.
  const std::vector<FoundParameter>& ignored() const { return ignored_; }
  const std::vector<state::ShardedTensor>& shards() const { return shards_; }
  const schedule::Follower& follower() const { return pager_->follower(); }

  /// Tags of collectives show this as the step.
  std::int64_t version() const { return gate_->version(); }

  /// All elements of a unit in the dtype of its shards. Collective. Valid while `body` runs.
  void with_whole(std::size_t unit, const std::function<void(const at::Tensor&)>& body);

  /// Runs `body` with a unit's whole memory in place, then evicts it again if it was absent.
  void with_unit(std::size_t unit, const std::function<void(std::byte*)>& body);

  /// Before a collective of all ranks: with `dynamic`, does this rank's part of the gathers that
  /// others may have begun.
  void take_part();

  /// Lets this rank change its own shards: waits until no rank reads the old values.
  void begin_update();

  /// Before this rank changes what it owns of a unit otherwise than by an operator on a shard.
  void note_change(std::size_t unit) { masters_->mark_changed(unit); }

  /// Drops all gradients, those of passes without sync included.
  void zero_grad();

  void open_scope();
  void close_scope(UnshardedMode mode, bool discard);

  /// ShardedModule::move_shards.
  bool move_shards(const std::vector<double>& weights,
                   std::span<state::ElementState* const> followers);
  /// What an element that this rank owns takes here: its shard, what of it is kept for gathers, and
  /// its gradient; on the average of what is cut. 0 where nothing is.
  double owned_element_bytes() const;
  double seconds_for_others() const { return reducer_->seconds_for_others(); }

  void set_gradient_sync(bool sync) { reducer_->set_sync(sync); }

  void release();
  Counters counters() const;
  void reset_peak();

  /// Keeps an error that could not be thrown where it happened; the next wait throws it.
  void keep_error(std::exception_ptr error) { kept_error_ = std::move(error); }

 private:
  class ParameterSource;
  class ShardPager;
  class GradientHook;

  void check_same_values() const;
  void broadcast_buffers() const;
  void make_pager();
  void attach();
  residency::Stay stay_of(const FlatUnit& unit) const;
  schedule::ScheduleOptions schedule_options() const;
  std::int64_t limit_by_schedule() const;
  at::Tensor make_shard(std::size_t unit, std::size_t parameter);
  void catch_up();
  struct Moved;
  void require_movable();
  void require_same_weights(const std::vector<double>& weights) const;
  bool cuts_differ(const std::vector<FlatUnit>& units) const;
  std::vector<FlatUnit> cut_again(const FullyShardOptions& options) const;
  void move_values(Moved& moved) const;
  void move_state(Moved& moved, state::ElementState& follower) const;
  void take(Moved moved, std::span<state::ElementState* const> followers);
  at::Tensor gather_masters(std::size_t unit) const;
  void show_masters();
  void hide_masters();
  void require_no_scope() const;
  void require_paged(std::size_t index) const;
  void take_gradient(std::size_t index, const at::Tensor& gradient);
  void drop_gradient(std::size_t index);
  void clear_gradient(std::size_t index);
  void clear_where_user_did();
  void note_gradients();
  bool note_backward();
  void begin_step();
  void end_step();
  void end_update();
  void end_of_backward();
  void rethrow_kept_error();
  base::Error with_account(const base::Error& mismatch) const;
  /// Returns what `call` does. Where ranks differ, adds to the error what this one has used.
  template <typename Call>
  decltype(auto) accounted(Call call) {
    try {
      return call();
    } catch (const base::Error& error) {
      if (error.code() != base::ErrorCode::kMismatch) throw;
      throw with_account(error);
    }
  }
  std::int64_t bytes_between_hosts() const;
  double gather_seconds() const {
    return gate_->waited_seconds() + update_seconds_ + memory_->waited_seconds();
  }

  ModelTree model_;
  comm::Mesh mesh_;
  FullyShardOptions options_;
  std::vector<FlatUnit> units_;
  std::vector<FoundParameter> ignored_;
  std::vector<state::ShardedTensor> shards_;

  struct Place {
    std::size_t unit;
    std::size_t parameter;
  };
  std::vector<Place> places_;             // of every parameter, in the order of shards_
  std::vector<bool> had_gradient_;        // by the same: after the last pass, with others unreduced
  std::vector<at::Tensor> placeholders_;  // their .grad, in the same order
  std::unique_ptr<GradientPlaceholder> gradient_placeholder_;

  std::unique_ptr<UnitMemory> memory_;
  std::unique_ptr<Masters> masters_;
  std::unique_ptr<UpdateGate> gate_;
  std::unique_ptr<residency::BackwardWatch> watch_;
  std::unique_ptr<residency::UnitPager> pager_;
  std::unique_ptr<ShardPager> shard_pager_;
  std::unique_ptr<GradientReducer> reducer_;
  std::vector<double> gather_exposed_;  // by unit: seconds that its gathers kept this rank waiting
  std::vector<at::Tensor> scope_copies_;  // by unit, while an unsharded scope is open
  // By unit: all elements of those with masters, which parameters then show; undefined for others.
  std::vector<at::Tensor> scope_masters_;
  bool in_step_ = false;
  double operator_seconds_ = 0;  // of those on shards
  std::int64_t shard_moves_ = 0;
  std::int64_t between_hosts_before_ = 0;  // bytes_between_hosts() when the model was sharded
  UpdateGathers update_gathers_;
  double update_seconds_ = 0;  // spent on them
  std::exception_ptr kept_error_;
};

}  // namespace fullshard::shard
