#include "recompute/surroundings.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>

namespace fullshard::recompute {
namespace {

constexpr std::array<at::DeviceType, 2> kAutocastDevices = {at::kCPU, at::kCUDA};

}  // namespace

RandomState::RandomState(const Tensors& tensors) {
  add(at::detail::getDefaultCPUGenerator());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    const at::Generator generator = at::globalContext().defaultGenerator(tensor.device());
    const auto is_it = [&](const Entry& entry) { return entry.generator == generator; };
    if (std::none_of(entries_.begin(), entries_.end(), is_it)) add(generator);
  }
}

void RandomState::add(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  entries_.push_back({generator, generator.get_state()});
}

void RandomState::restore() const {
  for (const Entry& entry : entries_) {
    at::Generator generator = entry.generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(entry.state);
  }
}

RandomState RandomState::now() const {
  RandomState out;
  for (const Entry& entry : entries_) out.add(entry.generator);
  return out;
}

AutocastState AutocastState::now() {
  AutocastState out{.devices = {}, .cache = at::autocast::is_autocast_cache_enabled()};
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    out.devices[i] = {at::autocast::is_autocast_enabled(kAutocastDevices[i]),
                      at::autocast::get_autocast_dtype(kAutocastDevices[i])};
  }
  return out;
}

void AutocastState::apply() const {
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], devices[i].enabled);
    at::autocast::set_autocast_dtype(kAutocastDevices[i], devices[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache);
}

AutocastScope::AutocastScope(AutocastState state) {
  state.cache = false;
  state.apply();
}

RandomScope::RandomScope(const RandomState* state) {
  if (state == nullptr) return;
  before_.push_back(state->now());
  state->restore();
}

RandomScope::~RandomScope() {
  for (const RandomState& state : before_) state.restore();
}

}  // namespace fullshard::recompute
