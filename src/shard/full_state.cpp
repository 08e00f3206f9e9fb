#include "shard/full_state.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "fullshard/base/error.h"
#include "shard/buffers.h"
#include "shard/store_values.h"

namespace fullshard::shard {
namespace {

// Everything in a state dictionary that a tensor of the given shape can fill.
struct Target {
  at::IntArrayRef shape;
  at::ScalarType dtype;
};

std::map<std::string, Target> targets(const Engine& engine,
                                      const std::vector<NamedTensor>& buffers) {
  std::map<std::string, Target> out;
  for (const FlatUnit& unit : engine.units()) {
    for (const FoundParameter& found : unit.parameters) {
      for (const std::string& name : found.names) {
        out.emplace(name, Target{found.tensor.sizes(), unit.shard_dtype()});
      }
    }
  }
  for (const FoundParameter& found : engine.ignored()) {
    for (const std::string& name : found.names) {
      out.emplace(name, Target{found.tensor.sizes(), found.tensor.scalar_type()});
    }
  }
  for (const NamedTensor& buffer : buffers) {
    out.emplace(buffer.name, Target{buffer.tensor.sizes(), buffer.tensor.scalar_type()});
  }
  return out;
}

LoadReport compare_names(const std::map<std::string, Target>& expected, const StateDict& state) {
  LoadReport report;
  for (const auto& [name, target] : expected) {
    if (!state.contains(name)) report.missing.push_back(name);
  }
  for (const auto& [name, tensor] : state) {
    if (!expected.contains(name)) report.unexpected.push_back(name);
  }
  return report;
}

std::vector<std::string> shape_clashes(const std::map<std::string, Target>& expected,
                                       const StateDict& state) {
  std::vector<std::string> clashes;
  for (const auto& [name, target] : expected) {
    const auto given = state.find(name);
    if (given == state.end() || given->second.sizes() == target.shape) continue;
    clashes.push_back(fmt::format("{}: given {}, the model has {}", name,
                                  c10::str(given->second.sizes()), c10::str(target.shape)));
  }
  return clashes;
}

void check(const LoadReport& report, const std::vector<std::string>& clashes, bool strict) {
  std::string message;
  if (!clashes.empty()) message += fmt::format("\n  other shape: {}", fmt::join(clashes, "; "));
  if (strict && !report.missing.empty()) {
    message += fmt::format("\n  missing: {}", fmt::join(report.missing, ", "));
  }
  if (strict && !report.unexpected.empty()) {
    message += fmt::format("\n  not in the model: {}", fmt::join(report.unexpected, ", "));
  }
  if (message.empty()) return;
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      "load_state_dict changed nothing, because the state does not fit the model:" + message);
}

// A tied parameter is taken from the first of its names that is given.
const at::Tensor* find_values(const FoundParameter& found, const StateDict& state) {
  for (const std::string& name : found.names) {
    if (const auto given = state.find(name); given != state.end()) return &given->second;
  }
  return nullptr;
}

// A copy of what each rank has for itself: rank 0's values, or where those cannot be sent its own.
at::Tensor copy_of(const Engine& engine, const NamedTensor& named, bool rank0_only) {
  const bool dense = named.tensor.layout() == at::kStrided && named.tensor.device().is_cpu();
  if (rank0_only || !dense) return named.tensor.detach().clone();
  return values_of_rank0(*engine.mesh().all, named);
}

}  // namespace

StateDict gather_state(Engine& engine, bool rank0_only) {
  const at::NoGradGuard no_grad;
  const bool keeps = !rank0_only || engine.mesh().all->rank() == 0;
  StateDict state;
  for (std::size_t u = 0; u < engine.units().size(); ++u) {
    const FlatUnit& unit = engine.units()[u];
    engine.with_whole(u, [&](const at::Tensor& whole) {
      for (std::size_t i = 0; keeps && i < unit.parameters.size(); ++i) {
        const at::Tensor values = parameter_in(unit, whole, i).clone(at::MemoryFormat::Contiguous);
        for (const std::string& name : unit.parameters[i].names) state[name] = values;
      }
    });
  }
  if (!keeps) return state;
  for (const FoundParameter& found : engine.ignored()) {
    const at::Tensor values = copy_of(engine, {found.names.front(), found.tensor}, rank0_only);
    for (const std::string& name : found.names) state[name] = values;
  }
  for (const NamedTensor& buffer : engine.model().buffers()) {
    state[buffer.name] = copy_of(engine, buffer, rank0_only);
  }
  return state;
}

LoadReport scatter_state(Engine& engine, const StateDict& state, bool strict) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor> buffers = engine.model().buffers();
  const auto expected = targets(engine, buffers);
  LoadReport report = compare_names(expected, state);
  check(report, shape_clashes(expected, state), strict);
  engine.begin_update();
  for (std::size_t u = 0; u < engine.units().size(); ++u) {
    const FlatUnit& unit = engine.units()[u];
    engine.note_change(u);
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      if (const at::Tensor* values = find_values(unit.parameters[i], state))
        store_own(unit, i, *values);
    }
  }
  for (const FoundParameter& found : engine.ignored()) {
    if (const at::Tensor* values = find_values(found, state)) found.tensor.copy_(*values);
  }
  for (const NamedTensor& buffer : buffers) {
    if (const auto given = state.find(buffer.name); given != state.end()) {
      buffer.tensor.detach().copy_(given->second);
    }
  }
  return report;
}

}  // namespace fullshard::shard
