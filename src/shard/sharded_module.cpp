#include "fullshard/shard/sharded_module.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/schedule/text.h"
#include "fullshard/shard/fully_shard.h"
#include "shard/describe.h"
#include "shard/engine.h"
#include "shard/full_state.h"
#include "shard/gradient_norm.h"

namespace fullshard::shard {
namespace {

// What all ranks have to call together. Where they have no memory in common they meet first, so
// that gathers of other calls, which may happen to be alike, are not taken for those of this one;
// errors of other ranks' making say which call of this one's they ended.
template <typename Call>
auto together(Engine& engine, const char* name, Call call) {
  const comm::Mesh& mesh = engine.mesh();
  try {
    engine.take_part();
    if (!mesh.all->shares_memory()) mesh.all->barrier({name, -1});
    return call();
  } catch (const base::Error& error) {
    throw base::Error(error.code(), fmt::format("{}: {}", name, error.what()), error.rank());
  }
}

}  // namespace

UnshardedScope::UnshardedScope(std::shared_ptr<Engine> engine, UnshardedMode mode)
    : engine_(std::move(engine)), mode_(mode) {
  engine_->open_scope();
}

UnshardedScope::~UnshardedScope() {
  if (!engine_) return;
  try {
    engine_->close_scope(mode_, /*discard=*/std::uncaught_exceptions() > 0);
  } catch (...) {
    engine_->keep_error(std::current_exception());
  }
}

void UnshardedScope::close() {
  if (const auto engine = std::exchange(engine_, nullptr)) {
    engine->close_scope(mode_, /*discard=*/false);
  }
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> out;
  for (const state::ShardedTensor& shard : engine_->shards()) out.push_back(shard.tensor);
  return out;
}

const std::vector<state::ShardedTensor>& ShardedModule::named_parameters() const {
  return engine_->shards();
}

double ShardedModule::grad_norm(double norm_type) const {
  return global_grad_norm(*engine_, norm_type);
}

double ShardedModule::clip_grad_norm_(double max_norm, double norm_type) const {
  const double norm = grad_norm(norm_type);
  // As torch::nn::utils::clip_grad_norm_ has it, the small constant included.
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) scale_gradients(*engine_, factor);
  return norm;
}

void ShardedModule::zero_grad() const { engine_->zero_grad(); }

void ShardedModule::set_requires_gradient_sync(bool sync) const {
  engine_->set_gradient_sync(sync);
}

UnshardedScope ShardedModule::unsharded(UnshardedMode mode) const { return {engine_, mode}; }

StateDict ShardedModule::full_state_dict(bool rank0_only) const {
  return together(*engine_, "full_state_dict", [&] { return gather_state(*engine_, rank0_only); });
}

LoadReport ShardedModule::load_state_dict(const StateDict& state, bool strict) const {
  return together(*engine_, "load_state_dict",
                  [&] { return scatter_state(*engine_, state, strict); });
}

bool ShardedModule::move_shards(const std::vector<double>& weights,
                                const std::vector<state::ElementState*>& followers) const {
  return together(*engine_, "move_shards",
                  [&] { return engine_->move_shards(weights, followers); });
}

void ShardedModule::release() const { engine_->release(); }

Counters ShardedModule::counters() const { return engine_->counters(); }

void ShardedModule::reset_peak() const { engine_->reset_peak(); }

std::int64_t ShardedModule::parameter_count() const {
  std::int64_t count = 0;
  for (const FlatUnit& unit : engine_->units()) count += unit.layout.payload_size();
  return count;
}

std::string ShardedModule::schedule() const {
  const schedule::Schedule* plan = engine_->follower().training_schedule();
  return plan == nullptr ? "" : schedule::to_text(*plan);
}

std::string ShardedModule::describe() const { return shard::describe(*engine_); }

const std::shared_ptr<torch::nn::Module>& ShardedModule::module() const {
  return engine_->model().module;
}

const comm::Mesh& ShardedModule::mesh() const { return engine_->mesh(); }

ShardedModule fully_shard(const std::shared_ptr<torch::nn::Module>& module, const comm::Mesh& mesh,
                          const FullyShardOptions& options) {
  return ShardedModule(std::make_shared<Engine>(tree_of(module), mesh, options));
}

ShardedModule fully_shard(const torch::jit::Module& module, const comm::Mesh& mesh,
                          const FullyShardOptions& options) {
  return ShardedModule(std::make_shared<Engine>(tree_of(module), mesh, options));
}

}  // namespace fullshard::shard
