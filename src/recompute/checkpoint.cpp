#include "fullshard/recompute/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "recompute/checkpoint_node.h"
#include "recompute/frontier.h"
#include "recompute/region.h"

namespace fullshard::recompute {
namespace {

using torch::autograd::impl::gradient_edge;

// Whether the region has computed it, with a history.
bool is_new(const at::Tensor& tensor, const Frontier& frontier) {
  return tensor.defined() && tensor.requires_grad() && !frontier.is_outside(gradient_edge(tensor));
}

bool is_view_of_older(const at::Tensor& output, const Frontier& frontier) {
  return output.is_view() && !is_new(at::Tensor(output._base()), frontier);
}

}  // namespace

// The region runs with gradients also the first time: its graph tells what it depends on, and then
// goes, with all that it holds.
Tensors checkpoint_tensors(std::function<Tensors(const Tensors&)> run, Tensors inputs,
                           const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return run(inputs);
  const auto region = std::make_shared<const Region>(std::move(run), std::move(inputs), options);
  Frontier frontier(Beginning::now(), region->inputs());
  Tensors outputs = region->run_first();
  std::vector<std::size_t> places;
  torch::autograd::edge_list roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_new(outputs[i], frontier)) continue;
    places.push_back(i);
    roots.push_back(gradient_edge(outputs[i]));
  }
  if (places.empty()) return outputs;
  frontier.collect(roots);
  // Long chains of nodes are let go one by one, not each inside the one before.
  const std::shared_ptr<CheckpointNode> node(new CheckpointNode(region, frontier),
                                             torch::autograd::deleteNode);
  for (const std::size_t place : places) {
    const at::Tensor own = node->adopt(outputs[place], place, outputs.size());
    outputs[place] = is_view_of_older(outputs[place], frontier) ? own.clone() : own;
  }
  return outputs;
}

}  // namespace fullshard::recompute
