#include "shard/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "shard/advice.h"
#include "shard/buffers.h"
#include "shard/check_options.h"
#include "shard/checksum.h"
#include "shard/difference.h"
#include "shard/discover.h"
#include "shard/gather_owned.h"
#include "shard/lay_out.h"
#include "shard/patterns.h"
#include "shard/precision.h"
#include "shard/replica_updates.h"
#include "shard/stopwatch.h"
#include "shard/strategy.h"

namespace fullshard::shard {

// Where ranks share memory a unit is in place once every rank has written its shard: gathering is a
// wait, no copy.
class Engine::ParameterSource final : public residency::UnitSource {
 public:
  explicit ParameterSource(Engine& engine)
      : engine_(engine), gathered_version_(engine.units_.size(), 0) {}

  void start(std::span<const int> units) override {
    const Exposure exposure(engine_, units.front());
    engine_.accounted([&] {
      for (const int unit : units) prepare(unit);
      engine_.memory_->start(units, engine_.gate_->version());
    });
  }

  std::byte* gather(int unit) override {
    const Exposure exposure(engine_, unit);
    return engine_.accounted([&] {
      prepare(unit);
      return engine_.memory_->gather(static_cast<std::size_t>(unit), engine_.gate_->version());
    });
  }

  bool is_current(int unit) const override {
    const FlatUnit& flat = engine_.units_[static_cast<std::size_t>(unit)];
    if (flat.replicated() && !flat.has_masters()) return true;
    return engine_.gate_->is_readable() &&
           gathered_version_[static_cast<std::size_t>(unit)] == engine_.gate_->version();
  }

  void release(int unit) override {
    engine_.accounted([&] { engine_.memory_->release(static_cast<std::size_t>(unit)); });
  }

  void end_step() override { engine_.end_step(); }

 private:
  // What the gate and the memory count as waiting while it lives is this unit's.
  class Exposure {
   public:
    Exposure(Engine& engine, int unit)
        : engine_(engine),
          unit_(static_cast<std::size_t>(unit)),
          before_(engine.gather_seconds()) {}
    Exposure(const Exposure&) = delete;
    Exposure& operator=(const Exposure&) = delete;
    ~Exposure() { engine_.gather_exposed_[unit_] += engine_.gather_seconds() - before_; }

   private:
    Engine& engine_;
    std::size_t unit_;
    double before_;
  };

  void prepare(int unit) {
    engine_.rethrow_kept_error();
    engine_.end_update();
    engine_.gate_->ensure_readable(engine_.units_[static_cast<std::size_t>(unit)].name);
    gathered_version_[static_cast<std::size_t>(unit)] = engine_.gate_->version();
    engine_.begin_step();
  }

  Engine& engine_;
  std::vector<std::int64_t> gathered_version_;  // by unit
};

// The first operator that writes to a shard, from whatever optimizer, opens the update.
class Engine::ShardPager final : public residency::Pager {
 public:
  explicit ShardPager(Engine& engine) : engine_(engine) {}

  // Only to hear of the end of the operator.
  bool begin_use(residency::PagedStorage& storage, std::string_view) override {
    if (engine_.units_[static_cast<std::size_t>(storage.index())].replicated()) return false;
    began_ = Clock::now();
    return true;
  }

  void end_use() noexcept override {
    engine_.operator_seconds_ += std::chrono::duration<double>(Clock::now() - began_).count();
  }

  void on_access(residency::PagedStorage& storage, residency::Access access,
                 std::string_view) override {
    if (access != residency::Access::kWrite) return;
    engine_.require_no_scope();
    const auto index = static_cast<std::size_t>(storage.index());
    const FlatUnit& unit = engine_.units_[index];
    // Nobody else can be reading what every rank has for itself; but what is written beside what is
    // read has to be published before this rank reads it.
    if (unit.replicated() && !unit.has_masters()) return;
    engine_.begin_update();
    engine_.note_change(index);
    began_ = Clock::now();  // it may have waited for other ranks
  }

 private:
  using Clock = std::chrono::steady_clock;

  Engine& engine_;
  Clock::time_point began_;
};

// Runs after autograd has stored a gradient. Where the placeholder is still in place it has taken
// the gradient; where it is not, the gradient has a graph, or the user had cleared .grad.
class Engine::GradientHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(Engine& engine, std::size_t index) : engine_(engine), index_(index) {}

  void operator()(const torch::autograd::Variable& variable) override {
    if (residency::paged_storage(variable.grad()) != nullptr) return;
    const at::Tensor gradient =
        std::exchange(variable.mutable_grad(), engine_.placeholders_[index_]);
    if (engine_.gradient_placeholder_->was_taken(static_cast<int>(index_))) return;
    engine_.drop_gradient(index_);
    engine_.take_gradient(index_, gradient);
  }

 private:
  Engine& engine_;
  std::size_t index_;
};

Engine::Engine(ModelTree model, const comm::Mesh& mesh, const FullyShardOptions& options)
    : model_(std::move(model)), mesh_(mesh), options_(options) {
  const at::NoGradGuard no_grad;
  check_options(options_, mesh_);
  FoundModel found = discover(model_.root, options_);
  ignored_ = std::move(found.ignored);
  units_ = lay_out(std::move(found.units), options_, mesh_);
  gather_exposed_.resize(units_.size(), 0);
  warn_if_one_unit(*this);
  check_same_values();
  memory_ = UnitMemory::make(mesh_, units_,
                             {.from_rank0 = options_.sync_module_states,
                              .dynamic = options_.dynamic,
                              .reshard_after_forward = options_.reshard_after_forward,
                              .gather_bucket_bytes = options_.gather_bucket_bytes});
  masters_ = std::make_unique<Masters>(mesh_, units_, options_.sync_module_states);
  between_hosts_before_ = bytes_between_hosts();
  gate_ = UpdateGate::make(*mesh_.shard);
  reducer_ = GradientReducer::make(mesh_, units_,
                                   {.divide_factor = options_.gradient_divide_factor,
                                    .predivide_factor = options_.gradient_predivide_factor,
                                    .bucket_bytes = options_.reduce_bucket_bytes,
                                    .dynamic = options_.dynamic,
                                    .hook = options_.communication_hook});
  broadcast_buffers();
  make_pager();
  attach();
  convert_buffers(model_, options_.mixed_precision);
}

Engine::~Engine() {
  for (FlatUnit& unit : units_) {
    for (FoundParameter& found : unit.parameters) {
      torch::autograd::impl::set_post_acc_grad_hooks(found.tensor, nullptr);
    }
  }
  for (const at::Tensor& placeholder : placeholders_)
    residency::paged_storage(placeholder)->orphan();
  for (state::ShardedTensor& shard : shards_) {
    if (residency::PagedStorage* storage = residency::paged_storage(shard.tensor))
      storage->orphan();
  }
}

void Engine::check_same_values() const {
  if (options_.sync_module_states || mesh_.all->size() == 1) return;
  for (const FlatUnit& unit : units_) {
    for (const FoundParameter& parameter : unit.parameters) {
      require_same_on_all_ranks(*mesh_.all, parameter.tensor.detach(), parameter.names.front());
    }
  }
}

void Engine::broadcast_buffers() const {
  if (!options_.sync_module_states) return;
  for (const NamedTensor& buffer : model_.buffers()) {
    buffer.tensor.detach().copy_(values_of_rank0(*mesh_.all, buffer));
  }
}

void Engine::make_pager() {
  const MixedPrecision& mixed = options_.mixed_precision;
  const bool casts_operands = mixed.param_dtype && mixed.cast_forward_inputs;
  std::vector<residency::PagedUnit> paged;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    FlatUnit& unit = units_[u];
    residency::PagedUnit entry{
        .name = unit.name, .bytes = unit.layout.flat_bytes(), .stay = stay_of(unit)};
    for (const layout::PlacedParameter& placed : unit.layout.parameters()) {
      const std::int64_t bytes = placed.numel * unit.element_bytes();
      entry.parameters.push_back(
          {c10::make_intrusive<residency::PagedStorage>(
               placed.spec.name, static_cast<std::size_t>(bytes), static_cast<int>(u)),
           static_cast<std::size_t>(placed.offset * unit.element_bytes())});
      unit.storages.push_back(entry.parameters.back().storage);
      if (casts_operands) unit.storages.back()->set_casts_operands();
    }
    paged.push_back(std::move(entry));
  }
  watch_ = std::make_unique<residency::BackwardWatch>(
      residency::BackwardWatch::Events{.begin = [this] { clear_where_user_did(); },
                                       .end = [this] { end_of_backward(); },
                                       .abandoned =
                                           [this] {
                                             clear_where_user_did();
                                             reducer_->abandon_round();
                                           }});
  pager_ = std::make_unique<residency::UnitPager>(
      std::move(paged), std::make_unique<ParameterSource>(*this), schedule_options(),
      [this] { return note_backward(); });
}

// Whether this thread is inside a backward pass.
bool Engine::note_backward() {
  if (!watch_->note()) return false;
  begin_step();
  return true;
}

// A step lasts from the first use of a parameter to the end of backward, or to the update where
// there was no backward.
void Engine::begin_step() {
  if (!std::exchange(in_step_, true)) reducer_->release_unused();
  reducer_->begin_step();
}

void Engine::end_step() {
  if (!std::exchange(in_step_, false)) return;
  memory_->end_step();
  reducer_->end_step();
}

residency::Stay Engine::stay_of(const FlatUnit& unit) const {
  if (memory_->keeps_units() && !unit.replicated()) return residency::Stay::kForGood;
  return shard::stay_of(unit.strategy);
}

schedule::ScheduleOptions Engine::schedule_options() const {
  // Only where a gather takes time is there something to hide.
  const int usual_prefetch = memory_->moves_bytes() ? 1 : 0;
  schedule::ScheduleOptions out{
      .max_unsharded_bytes = limit_by_schedule(),
      .forward_prefetch = options_.forward_prefetch.value_or(usual_prefetch),
      .backward_prefetch = options_.backward_prefetch.value_or(usual_prefetch),
      .limit_all_gathers = options_.limit_all_gathers,
      .gather_bucket_bytes = options_.gather_bucket_bytes};
  require_units("keep_gathered", options_.keep_gathered, units_);
  const bool stays = options_.reshard_after_forward == 1;
  for (const FlatUnit& unit : units_) {
    out.keep_gathered.push_back(std::any_of(
        options_.keep_gathered.begin(), options_.keep_gathered.end(),
        [&](const std::string& pattern) { return base::matches_glob(pattern, unit.picked); }));
    out.keep_for_backward.push_back(stays || unit.strategy == ShardingStrategy::SHARD_GRAD_OP);
  }
  return out;
}

// What max_unsharded_bytes leaves for units that come and go.
std::int64_t Engine::limit_by_schedule() const {
  const std::int64_t limit = options_.max_unsharded_bytes;
  std::int64_t for_good = 0;
  std::int64_t largest = 0;
  for (const FlatUnit& unit : units_) {
    const residency::Stay stay = stay_of(unit);
    if (stay == residency::Stay::kForGood) for_good += unit.layout.flat_bytes();
    if (stay == residency::Stay::kBySchedule) largest = std::max(largest, unit.layout.flat_bytes());
  }
  if (limit == 0 || for_good == 0) return limit;
  if (for_good + largest <= limit) return std::max<std::int64_t>(limit - for_good, 1);
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format(
          "max_unsharded_bytes is {} ({}), but units of {} bytes ({}) stay gathered for good, with "
          "SHARD_OPTIMIZER_ONLY or `dynamic`, and the largest of the others takes {}: raise the "
          "limit to {} at least, or choose FULL_SHARD without `dynamic` for more of them",
          limit, base::format_bytes(limit), for_good, base::format_bytes(for_good), largest,
          for_good + largest));
}

void Engine::attach() {
  // set_data runs operators on the paged tensor; none of them reads its memory.
  const residency::BypassScope bypass;
  const c10::InferenceMode not_for_inference(false);  // it is training that the tensors are for
  // What can fail comes before the module is changed.
  shard_pager_ = std::make_unique<ShardPager>(*this);
  gradient_placeholder_ = std::make_unique<GradientPlaceholder>(
      [this](int index, const at::Tensor& gradient) {
        take_gradient(static_cast<std::size_t>(index), gradient);
      },
      [this](int index) { clear_gradient(static_cast<std::size_t>(index)); });
  std::vector<std::vector<at::Tensor>> by_unit;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    FlatUnit& unit = units_[u];
    by_unit.emplace_back();
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const auto& placed = unit.layout.parameters()[i];
      at::Tensor& parameter = unit.parameters[i].tensor;
      const layout::Range owned = unit.own_range(i);
      shards_.push_back({.name = placed.spec.name,
                         .global_shape = placed.spec.shape,
                         .begin = owned.begin,
                         .end = owned.end,
                         .tensor = make_shard(u, i),
                         .replicated = unit.replicated(),
                         .dimension = unit.cut_dimension(i)});
      by_unit.back().push_back(shards_.back().tensor);
      parameter.set_data(paged_parameter(unit, i));
      const std::size_t index = places_.size();
      places_.push_back({u, i});
      had_gradient_.push_back(false);
      placeholders_.push_back(
          gradient_placeholder_->make(placed.spec.name, parameter, static_cast<int>(index)));
      parameter.mutable_grad() = placeholders_.back();
      torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                     std::make_unique<GradientHook>(*this, index));
    }
  }
  reducer_->set_shards(std::move(by_unit));
}

at::Tensor Engine::make_shard(std::size_t u, std::size_t parameter) {
  const FlatUnit& unit = units_[u];
  const auto& placed = unit.layout.parameters()[parameter];
  const layout::Range owned = unit.own_range(parameter);
  const std::int64_t bytes = owned.size() * unit.shard_element_bytes();
  auto storage = c10::make_intrusive<residency::PagedStorage>(
      placed.spec.name, static_cast<std::size_t>(bytes), static_cast<int>(u));
  storage->attach(shard_pager_.get());
  storage->map(unit.shard_at(placed.offset + owned.begin));
  return residency::make_paged_tensor(storage, unit.shard_dtype(), {owned.size()}, {1});
}

at::Tensor Engine::gather_masters(std::size_t unit) const {
  return gather_owned(mesh_, units_[unit], owned_values(units_[unit]),
                      {units_[unit].name, gate_->version()});
}

void Engine::with_whole(std::size_t unit, const std::function<void(const at::Tensor&)>& body) {
  const FlatUnit& flat = units_[unit];
  if (!scope_masters_.empty() && scope_masters_[unit].defined()) return body(scope_masters_[unit]);
  if (flat.has_masters()) {
    end_update();  // others may be waiting for this rank's shards before they come here
    return body(gather_masters(unit));
  }
  with_unit(unit, [&](std::byte* whole) {
    body(at::from_blob(whole, {flat.layout.flat_size()}, flat.dtype()));
  });
}

void Engine::with_unit(std::size_t unit, const std::function<void(std::byte*)>& body) {
  pager_->with_resident(unit, body);
}

void Engine::take_part() {
  if (options_.dynamic) catch_up();
}

void Engine::catch_up() {
  end_update();
  memory_->take_part(gate_->version());
}

void Engine::require_no_scope() const {
  if (scope_copies_.empty()) return;
  throw base::Error(base::ErrorCode::kMisuse,
                    "an unsharded() scope is open, and closing it would undo this update; close it "
                    "before an optimizer step or load_state_dict");
}

// A pass that is never followed by a backward leaves units resident; they hold the old values, and
// touching them again would not pass the gate.
void Engine::begin_update() {
  rethrow_kept_error();
  require_no_scope();
  if (gate_->is_writing()) return;
  end_step();
  memory_->take_part(gate_->version());
  pager_->release();
  gate_->begin_write();
}

// What replicas have updated each for all of them has to be here before anybody reads it.
void Engine::end_update() {
  if (!gate_->is_writing()) return;
  masters_->publish();
  if (options_.shard_optimizer_over_replicas) {
    const Stopwatch watch(update_seconds_);
    gather_updates(*mesh_.replicate, units_, mesh_.shard->rank(), gate_->version(),
                   update_gathers_);
  }
  gate_->end_write();
}

void Engine::rethrow_kept_error() {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

base::Error Engine::with_account(const base::Error& mismatch) const {
  if (pager_ == nullptr) return mismatch;
  const std::string account = account_of(pager_->uses(), units_, mesh_.all->rank());
  return {mismatch.code(), mismatch.what() + account, mismatch.rank()};
}

void Engine::release() { pager_->release(); }

void Engine::reset_peak() {
  pager_->reset_peak();
  reducer_->collect();
  reducer_->reset_peak();
}

}  // namespace fullshard::shard
