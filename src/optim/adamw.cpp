#include "fullshard/optim/adamw.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/state/validate.h"

namespace fullshard::optim {
namespace {

void validate(const AdamWOptions& options) {
  const auto require = [](bool holds, const char* field, const char* range, double value) {
    if (holds) return;
    throw base::Error(base::ErrorCode::kConfiguration,
                      fmt::format("AdamW: {} must be {}, not {}", field, range, value));
  };
  const auto fraction = [](double value) { return value >= 0 && value < 1; };
  const auto at_least_zero = [](double value) { return std::isfinite(value) && value >= 0; };
  require(at_least_zero(options.lr), "lr", "0 or above", options.lr);
  require(fraction(options.beta1), "beta1", "from 0 to below 1", options.beta1);
  require(fraction(options.beta2), "beta2", "from 0 to below 1", options.beta2);
  require(at_least_zero(options.eps), "eps", "0 or above", options.eps);
  require(at_least_zero(options.weight_decay), "weight_decay", "0 or above", options.weight_decay);
}

void validate_gradient(const state::ShardedTensor& parameter, const at::Tensor& grad) {
  const auto& tensor = parameter.tensor;
  if (grad.sizes() == tensor.sizes() && grad.scalar_type() == tensor.scalar_type() &&
      grad.device() == tensor.device()) {
    return;
  }
  throw base::Error(
      base::ErrorCode::kMisuse,
      fmt::format("the gradient of \"{}\" ({} elements of {} on {}) does not fit the parameter's "
                  "shard ({} elements of {} on {})",
                  parameter.name, grad.numel(), c10::toString(grad.scalar_type()),
                  grad.device().str(), tensor.numel(), c10::toString(tensor.scalar_type()),
                  tensor.device().str()));
}

void validate_step(double lr, std::optional<double> clip_coefficient) {
  const auto reject = [](const char* what, double value) {
    throw base::Error(base::ErrorCode::kMisuse, fmt::format("AdamW step: {}, not {}", what, value));
  };
  if (!std::isfinite(lr) || lr < 0) reject("lr must be 0 or above", lr);
  if (!clip_coefficient) return;
  if (!std::isfinite(*clip_coefficient) || *clip_coefficient <= 0) {
    reject("the clip coefficient must be a finite number above 0 (is the gradient norm finite?)",
           *clip_coefficient);
  }
}

state::ShardedTensor shaped_like(const state::ShardedTensor& parameter, const char* suffix,
                                 const at::Tensor& values) {
  state::ShardedTensor part = parameter;
  part.name += suffix;
  part.tensor = values;
  return part;
}

/// The factor by which ATen's kernel divides the gradients it reads, and writes them back. It holds
/// a float, too coarse for double gradients: those are multiplied here instead.
std::optional<at::Tensor> clip(std::vector<at::Tensor>& grads, double coefficient) {
  if (coefficient == 1.0) return std::nullopt;
  if (grads.front().scalar_type() == at::kDouble) {
    at::_foreach_mul_(grads, coefficient);
    return std::nullopt;
  }
  return at::full({}, 1.0 / coefficient, grads.front().options().dtype(at::kFloat));
}

// Where a parameter may refuse to be written, as a shard does, it does so here, before anything of
// the step has happened.
void announce_write(const at::Tensor& tensor) { tensor.narrow(0, 0, 0).zero_(); }

}  // namespace

AdamW::AdamW(std::vector<state::ShardedTensor> parameters, AdamWOptions options,
             std::vector<GroupRule> rules)
    : parameters_(std::move(parameters)), options_(options), moments_(parameters_.size()) {
  validate(options_);
  state::validate(parameters_);
  const std::vector<std::size_t> assigned = assign_groups(parameters_, rules);
  rules.push_back(GroupRule{});
  groups_.resize(rules.size());
  for (std::size_t i = 0; i < rules.size(); ++i) {
    groups_[i].weight_decay = rules[i].weight_decay.value_or(options_.weight_decay);
    groups_[i].lr_scale = rules[i].lr_scale.value_or(1.0);
  }
  for (std::size_t i = 0; i < assigned.size(); ++i) groups_[assigned[i]].members.push_back(i);
  std::erase_if(groups_, [](const Group& group) { return group.members.empty(); });
}

void AdamW::step(double lr, std::optional<double> clip_coefficient) {
  validate_step(lr, clip_coefficient);
  const torch::NoGradGuard no_grad;
  for (Group& group : groups_) collect_gradients(group);
  for (const Group& group : groups_) {
    if (!group.tensors.empty()) announce_write(group.tensors.front());
  }
  for (Group& group : groups_) update(group, lr, clip_coefficient);
}

void AdamW::collect_gradients(Group& group) {
  std::vector<std::size_t>& active = active_now_;
  active.clear();
  group.grads.clear();
  for (const std::size_t i : group.members) {
    const at::Tensor& grad = parameters_[i].tensor.grad();
    if (!grad.defined()) continue;
    validate_gradient(parameters_[i], grad);
    active.push_back(i);
    group.grads.push_back(grad.contiguous());
  }
  if (active != group.active) rebuild(group, active);
}

void AdamW::rebuild(Group& group, const std::vector<std::size_t>& active) {
  group.active = active;
  for (auto* list : {&group.tensors, &group.exp_avgs, &group.exp_avg_sqs, &group.steps}) {
    list->clear();
  }
  for (const std::size_t i : group.active) {
    create_moments(i);
    group.tensors.push_back(parameters_[i].tensor);
    group.exp_avgs.push_back(moments_[i].exp_avg);
    group.exp_avg_sqs.push_back(moments_[i].exp_avg_sq);
    group.steps.push_back(moments_[i].step);
  }
}

void AdamW::create_moments(std::size_t parameter) {
  if (moments_[parameter].step.defined()) return;
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device());
  moments_[parameter] = {at::zeros(tensor.sizes(), options), at::zeros(tensor.sizes(), options),
                         at::zeros({1}, options.dtype(at::kFloat))};
}

void AdamW::update(Group& group, double lr, std::optional<double> clip_coefficient) {
  if (group.active.empty()) return;
  const auto grad_scale = clip(group.grads, clip_coefficient.value_or(1.0));
  at::_foreach_add_(group.steps, 1);
  at::_fused_adamw_(group.tensors, group.grads, group.exp_avgs, group.exp_avg_sqs,
                    /*max_exp_avg_sqs=*/{}, group.steps, lr * group.lr_scale, options_.beta1,
                    options_.beta2, group.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false, grad_scale);
  group.grads.clear();
}

void AdamW::zero_grad(bool set_to_none) {
  for (auto& parameter : parameters_) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) continue;
    if (set_to_none) {
      grad.reset();
    } else {
      grad.detach_().zero_();
    }
  }
}

void AdamW::create_state() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) create_moments(i);
}

std::int64_t AdamW::state_bytes() const {
  std::int64_t bytes = 0;
  for (const Moments& moments : moments_) {
    for (const at::Tensor* tensor : {&moments.exp_avg, &moments.exp_avg_sq, &moments.step}) {
      if (tensor->defined()) bytes += static_cast<std::int64_t>(tensor->nbytes());
    }
  }
  return bytes;
}

std::optional<std::size_t> AdamW::find(const at::Tensor& parameter) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.is_same(parameter)) return i;
  }
  return std::nullopt;
}

std::pair<at::Tensor, at::Tensor> AdamW::moments_of(const at::Tensor& parameter) const {
  const auto index = find(parameter);
  if (!index) return {};
  return {moments_[*index].exp_avg, moments_[*index].exp_avg_sq};
}

void AdamW::replace(const state::ShardedTensor& shard, at::Tensor exp_avg, at::Tensor exp_avg_sq) {
  const auto index = find(shard.tensor);
  if (!index) return;
  parameters_[*index].begin = shard.begin;
  parameters_[*index].end = shard.end;
  moments_[*index].exp_avg = std::move(exp_avg);
  moments_[*index].exp_avg_sq = std::move(exp_avg_sq);
  for (Group& group : groups_) rebuild(group, {});
}

std::vector<state::ShardedTensor> AdamW::state() const {
  std::vector<state::ShardedTensor> parts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Moments& moments = moments_[i];
    if (!moments.step.defined()) continue;
    parts.push_back(shaped_like(parameters_[i], ".exp_avg", moments.exp_avg));
    parts.push_back(shaped_like(parameters_[i], ".exp_avg_sq", moments.exp_avg_sq));
    parts.push_back({parameters_[i].name + ".step", {}, 0, 1, moments.step, true});
  }
  return parts;
}

}  // namespace fullshard::optim
