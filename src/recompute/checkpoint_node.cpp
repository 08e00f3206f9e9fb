#include "recompute/checkpoint_node.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace fullshard::recompute {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

std::int64_t leaf_version(const Edge& edge) {
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
  return leaf == nullptr ? 0 : version_of(leaf->variable);
}

std::vector<std::int64_t> leaf_versions(const Frontier& frontier) {
  std::vector<std::int64_t> versions;
  for (const Edge& edge : frontier.edges()) versions.push_back(leaf_version(edge));
  return versions;
}

bool any_defined(const variable_list& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined(); });
}

}  // namespace

CheckpointNode::CheckpointNode(std::shared_ptr<const Region> region, const Frontier& frontier)
    : Node(edge_list(frontier.edges())),
      kept_(std::make_shared<const Kept>(
          Kept{std::move(region), frontier, leaf_versions(frontier)})) {}

at::Tensor CheckpointNode::adopt(const at::Tensor& output, std::size_t place, std::size_t count) {
  output_count_ = count;
  outputs_.push_back({place, output.sizes().vec(), output.scalar_type()});
  at::Tensor out = output.detach();
  torch::autograd::set_history(out, shared_from_this());
  return out;
}

void CheckpointNode::release_variables() {
  std::shared_ptr<const Kept> gone;  // destroyed without the lock: much may go with it
  const std::lock_guard lock(mutex_);
  gone.swap(kept_);
}

std::shared_ptr<const CheckpointNode::Kept> CheckpointNode::kept() {
  const std::lock_guard lock(mutex_);
  if (kept_ != nullptr) return kept_;
  reject(
      "backward came a second time to a region that was let go after the first; pass "
      "retain_graph=true to all backward passes but the last");
}

// The frontier's places whose gradients the pass asks for.
std::vector<std::size_t> CheckpointNode::wanted() const {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < num_outputs(); ++i) {
    if (task_should_compute_output(i)) places.push_back(i);
  }
  return places;
}

void CheckpointNode::require_same(const Tensors& outputs) const {
  if (outputs.size() != output_count_) {
    reject(fmt::format("a region returned {} outputs when it ran again in backward, and {} before",
                       outputs.size(), output_count_));
  }
  for (const Output& expected : outputs_) {
    const at::Tensor& output = outputs[expected.place];
    if (!output.defined() || !output.requires_grad()) {
      reject(fmt::format("output {} of a region has no gradient when it runs again in backward",
                         expected.place));
    }
    if (output.sizes().vec() == expected.sizes && output.scalar_type() == expected.dtype) continue;
    reject(fmt::format(
        "output {} of a region is {} of [{}] when it runs again in backward, and was {} of [{}]",
        expected.place, at::toString(output.scalar_type()), fmt::join(output.sizes(), ", "),
        at::toString(expected.dtype), fmt::join(expected.sizes, ", ")));
  }
}

variable_list CheckpointNode::apply(variable_list&& gradients) {
  const std::shared_ptr<const Kept> kept = this->kept();
  variable_list results(num_outputs());
  if (!any_defined(gradients) || wanted().empty()) return results;
  if (leaf_versions(kept->frontier) != kept->leaf_versions) {
    reject(
        "a parameter that a region uses was changed in place, for instance by an optimizer step, "
        "between its forward and its backward, which has to run the region again");
  }
  const Beginning begin = Beginning::now();
  const Tensors outputs = kept->region->run_again();
  require_same(outputs);
  differentiate(kept->frontier, outputs, gradients, begin, results);
  return results;
}

// A pass inside the one that called: what the region's operators do to parameters belongs to both.
void CheckpointNode::differentiate(const Frontier& frontier, const Tensors& outputs,
                                   const variable_list& gradients, Beginning begin,
                                   variable_list& results) const {
  edge_list roots;
  variable_list given;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[outputs_[i].place]));
    given.push_back(gradients[i]);
  }
  const CutGraph graph(frontier, roots, begin);
  std::vector<std::size_t> places;
  edge_list ends;
  for (const std::size_t place : wanted()) {
    if (!graph.end(place).is_valid()) continue;
    places.push_back(place);
    ends.push_back(graph.end(place));
  }
  if (ends.empty()) return;
  const bool create_graph = at::GradMode::is_enabled();
  variable_list found = torch::autograd::Engine::get_default_engine().execute(
      roots, given, /*keep_graph=*/create_graph, create_graph, /*accumulate_grad=*/false, ends);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(found[i]);
}

}  // namespace fullshard::recompute
