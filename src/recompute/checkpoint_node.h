#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fullshard/recompute/checkpoint.h"
#include "recompute/frontier.h"
#include "recompute/region.h"

namespace fullshard::recompute {

/// Stands in the graph for a whole region: leads from the region's outputs to its frontier, and
/// computes those gradients by running the region again.
class CheckpointNode final : public torch::autograd::Node {
 public:
  CheckpointNode(std::shared_ptr<const Region> region, const Frontier& frontier);

  /// From now on the node's next input is the gradient of outputs[place], of which the result is a
  /// copy without the region's graph. There are `count` outputs.
  at::Tensor adopt(const at::Tensor& output, std::size_t place, std::size_t count);

  std::string name() const override { return "CheckpointBackward"; }
  void release_variables() override;

 private:
  /// What is known of an output whose gradient comes here.
  struct Output {
    std::size_t place;
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
  };
  /// What goes when the graph is released.
  struct Kept {
    std::shared_ptr<const Region> region;
    Frontier frontier;
    std::vector<std::int64_t> leaf_versions;  // of the frontier's leaves; 0 for others
  };
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::shared_ptr<const Kept> kept();
  std::vector<std::size_t> wanted() const;
  void require_same(const Tensors& outputs) const;
  void differentiate(const Frontier& frontier, const Tensors& outputs,
                     const torch::autograd::variable_list& gradients, Beginning begin,
                     torch::autograd::variable_list& results) const;

  std::shared_ptr<const Kept> kept_;  // guarded by Node::mutex_; null once it was let go
  std::vector<Output> outputs_;
  std::size_t output_count_ = 0;
};

}  // namespace fullshard::recompute
