#include "shard/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <span>
#include <utility>

#include "fullshard/base/check.h"
#include "shard/advice.h"
#include "shard/checksum.h"
#include "shard/discover.h"
#include "shard/dtype.h"

namespace fullshard::shard {
namespace {

constexpr std::int64_t kPage = 4096;

std::int64_t round_to_page(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

// A unit's memory is in place once every rank has written its shard: gathering is a wait, no copy.
class Engine::ParameterSource final : public residency::UnitSource {
 public:
  ParameterSource(Engine& engine, std::size_t unit) : engine_(engine), unit_(unit) {}

  std::byte* gather() override {
    engine_.rethrow_kept_error();
    engine_.gate_->ensure_readable(engine_.units_[unit_].name);
    return engine_.units_[unit_].full;
  }

  void release() override {}

 private:
  Engine& engine_;
  std::size_t unit_;
};

// The first operator that writes to a shard, from whatever optimizer, opens the update.
class Engine::ShardPager final : public residency::Pager {
 public:
  explicit ShardPager(Engine& engine) : engine_(engine) {}

  void on_access(residency::PagedStorage&, residency::Access access, std::string_view) override {
    if (access == residency::Access::kWrite) engine_.begin_update();
  }

 private:
  Engine& engine_;
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
    engine_.shards_[index_].tensor.mutable_grad() = at::Tensor();
    engine_.clear_where_user_did();
    engine_.take_gradient(index_, gradient);
  }

 private:
  Engine& engine_;
  std::size_t index_;
};

Engine::Engine(std::shared_ptr<torch::nn::Module> module, const comm::Mesh& mesh,
               const FullyShardOptions& options)
    : module_(std::move(module)), mesh_(mesh), options_(options) {
  const at::NoGradGuard no_grad;
  lay_out(discover_units({"", module_}, options_.auto_wrap_policy));
  warn_if_one_unit(*this);
  check_same_values();
  allocate();
  fill();
  broadcast_buffers();
  make_pager();
  attach();
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

void Engine::lay_out(std::vector<FoundUnit> found) {
  layout::LayoutOptions layout_options;
  layout_options.world = replicated() ? 1 : group().size();
  for (FoundUnit& unit : found) {
    std::vector<layout::ParameterSpec> specs;
    for (const FoundParameter& parameter : unit.parameters) {
      specs.push_back({.name = parameter.names.front(),
                       .shape = parameter.tensor.sizes().vec(),
                       .dtype = to_dtype(parameter.tensor.scalar_type(), parameter.names.front()),
                       .atom = layout::Atom::kElement,
                       .trainable = parameter.tensor.requires_grad()});
    }
    FlatUnit flat{.name = unit.name,
                  .layout = layout::UnitLayout::make(unit.name, std::move(specs), layout_options),
                  .parameters = std::move(unit.parameters)};
    flat.own = replicated() ? layout::Range{0, flat.layout.flat_size()}
                            : flat.layout.slice(group().rank());
    units_.push_back(std::move(flat));
  }
}

void Engine::allocate() {
  board_ = group().allocate_signals(
      UpdateGate::kCounters + GradientReducer::counters(units_.size()), "training state");
  gate_ = std::make_unique<UpdateGate>(*board_);
  std::int64_t bytes = kPage;
  for (const FlatUnit& unit : units_) bytes += round_to_page(unit.layout.flat_bytes());
  std::byte* memory = nullptr;
  if (replicated()) {
    private_memory_ = at::zeros({bytes}, at::kByte);
    memory = static_cast<std::byte*>(private_memory_.mutable_data_ptr());
  } else {
    shared_memory_ = group().allocate_shared(static_cast<std::size_t>(bytes), "parameters");
    memory = shared_memory_->data();
  }
  for (FlatUnit& unit : units_) {
    unit.full = memory;
    memory += round_to_page(unit.layout.flat_bytes());
  }
}

void Engine::fill() {
  const bool rank0_fills = options_.sync_module_states && !replicated();
  if (rank0_fills && group().rank() != 0) return;
  for (FlatUnit& unit : units_) {
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const auto& placed = unit.layout.parameters()[i];
      const layout::Range range = rank0_fills ? layout::Range{0, placed.numel} : unit.own_range(i);
      const at::Tensor values = unit.parameters[i].tensor.detach().contiguous().view({-1}).narrow(
          0, range.begin, range.size());
      at::from_blob(unit.at(placed.offset + range.begin), {range.size()}, unit.dtype())
          .copy_(values);
    }
  }
}

void Engine::check_same_values() const {
  if (options_.sync_module_states || group().size() == 1) return;
  for (const FlatUnit& unit : units_) {
    for (const FoundParameter& parameter : unit.parameters) {
      require_same_on_all_ranks(group(), parameter.tensor.detach(), parameter.names.front());
    }
  }
}

void Engine::broadcast_buffers() {
  if (!options_.sync_module_states) return;
  for (const auto& item : module_->named_buffers()) {
    at::Tensor values = item.value().detach().contiguous();
    group().broadcast(
        {values.mutable_data_ptr(), values.numel(), to_dtype(values.scalar_type(), item.key())}, 0,
        {item.key(), 0});
    item.value().detach().copy_(values);
  }
  if (!replicated()) return;
  for (FlatUnit& unit : units_) {
    group().broadcast({unit.full, unit.layout.flat_size(), unit.layout.dtype()}, 0, {unit.name, 0});
  }
}

void Engine::make_pager() {
  std::vector<residency::PagedUnit> paged;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    FlatUnit& unit = units_[u];
    residency::PagedUnit entry{.name = unit.name,
                               .bytes = unit.layout.flat_bytes(),
                               .source = std::make_unique<ParameterSource>(*this, u),
                               .always_resident = replicated()};
    for (const layout::PlacedParameter& placed : unit.layout.parameters()) {
      const std::int64_t bytes = placed.numel * unit.element_bytes();
      entry.parameters.push_back(
          {c10::make_intrusive<residency::PagedStorage>(
               placed.spec.name, static_cast<std::size_t>(bytes), static_cast<int>(u)),
           static_cast<std::size_t>(placed.offset * unit.element_bytes())});
      unit.storages.push_back(entry.parameters.back().storage);
    }
    paged.push_back(std::move(entry));
  }
  watch_ = std::make_unique<residency::BackwardWatch>([this] { end_of_backward(); },
                                                      [this] { reducer_->abandon_round(); });
  const schedule::ScheduleOptions schedule_options{
      .reshard_after_forward = options_.sharding_strategy == ShardingStrategy::FULL_SHARD,
      .max_unsharded_bytes = options_.max_unsharded_bytes};
  pager_ = std::make_unique<residency::UnitPager>(std::move(paged), schedule_options,
                                                  [this] { return watch_->note(); });
}

void Engine::attach() {
  // set_data runs operators on the paged tensor; none of them reads its memory.
  const residency::BypassScope bypass;
  shard_pager_ = std::make_unique<ShardPager>(*this);
  gradient_placeholder_ = std::make_unique<GradientPlaceholder>(
      [this](int index, const at::Tensor& gradient) {
        take_gradient(static_cast<std::size_t>(index), gradient);
      },
      [this](int index) {
        const at::Tensor& gradient = shards_[static_cast<std::size_t>(index)].tensor.grad();
        if (gradient.defined()) gradient.zero_();
      });
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
                         .tensor = make_shard(unit, i),
                         .replicated = replicated()});
      by_unit.back().push_back(shards_.back().tensor);
      const at::Tensor contiguous = at::empty(placed.spec.shape, at::device(at::kMeta));
      parameter.set_data(residency::make_paged_tensor(unit.storages[i], unit.dtype(),
                                                      placed.spec.shape, contiguous.strides()));
      const std::size_t index = places_.size();
      places_.push_back({u, i});
      placeholders_.push_back(
          gradient_placeholder_->make(placed.spec.name, parameter, static_cast<int>(index)));
      parameter.mutable_grad() = placeholders_.back();
      torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                     std::make_unique<GradientHook>(*this, index));
    }
  }
  reducer_ = std::make_unique<GradientReducer>(group(), units_, std::move(by_unit), *board_,
                                               UpdateGate::kCounters);
}

at::Tensor Engine::make_shard(FlatUnit& unit, std::size_t parameter) {
  const auto& placed = unit.layout.parameters()[parameter];
  const layout::Range owned = unit.own_range(parameter);
  const std::int64_t bytes = owned.size() * unit.element_bytes();
  auto storage = c10::make_intrusive<residency::PagedStorage>(placed.spec.name,
                                                              static_cast<std::size_t>(bytes), 0);
  storage->attach(shard_pager_.get());
  storage->map(unit.at(placed.offset + owned.begin));
  return residency::make_paged_tensor(storage, unit.dtype(), {owned.size()}, {1});
}

void Engine::with_unit(std::size_t unit, const std::function<void(std::byte*)>& body) {
  pager_->with_resident(unit, body);
}

void Engine::begin_update() {
  rethrow_kept_error();
  // Replicated parameters are private: nobody else can be reading them.
  if (!replicated()) gate_->begin_write();
}

// module->zero_grad() drops the placeholders: the user wants no gradient from before.
void Engine::clear_where_user_did() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& parameter = units_[places_[i].unit].parameters[places_[i].parameter].tensor;
    if (parameter.grad().defined()) continue;
    parameter.mutable_grad() = placeholders_[i];
    shards_[i].tensor.mutable_grad() = at::Tensor();
  }
}

void Engine::take_gradient(std::size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  rethrow_kept_error();
  watch_->note();
  reducer_->add(places_[index].unit, places_[index].parameter, gradient);
}

void Engine::end_of_backward() {
  const at::NoGradGuard no_grad;
  pager_->end_step();
  reducer_->finish_round();
}

void Engine::rethrow_kept_error() {
  if (kept_error_) std::rethrow_exception(std::exchange(kept_error_, nullptr));
}

void Engine::release() { pager_->release(); }

void Engine::reset_peak() {
  pager_->reset_peak();
  reducer_->collect();
  reducer_->reset_peak();
}

}  // namespace fullshard::shard
