#include "recompute/frontier.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <string>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::recompute {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Gradients are taken from here as the pass arrives, before it would run.
class End final : public Node {
 public:
  explicit End(const Edge& in_place_of) {
    input_metadata_.emplace_back(in_place_of.function->input_metadata(in_place_of.input_nr));
  }

 private:
  variable_list apply(variable_list&&) override {
    base::fail_check(__FILE__, __LINE__, "the end of a region's graph was run");
  }
};

const torch::autograd::AccumulateGrad* as_leaf(const Edge& edge) {
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
}

/// Visits every node that can be reached from `roots` over edges for which `enter` is true. `enter`
/// is called for each edge of each of these nodes, with its node and its index.
template <class Enter>
void walk(const edge_list& roots, const Enter& enter) {
  std::unordered_set<const Node*> seen;
  std::vector<std::shared_ptr<Node>> pending;
  const auto add = [&](const Edge& edge) {
    if (seen.insert(edge.function.get()).second) pending.push_back(edge.function);
  };
  for (const Edge& root : roots) add(root);
  while (!pending.empty()) {
    const std::shared_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    for (std::size_t i = 0; i < node->next_edges().size(); ++i) {
      const Edge edge = node->next_edge(i);
      if (edge.is_valid() && enter(node, i)) add(edge);
    }
  }
}

std::string describe(const Edge& edge) {
  if (const auto* leaf = as_leaf(edge)) {
    return fmt::format("a leaf tensor of {} dimensions and {} elements", leaf->variable.dim(),
                       leaf->variable.numel());
  }
  return "a result of " + edge.function->name();
}

}  // namespace

Beginning Beginning::now() {
  return {at::sequence_number::peek(), at::RecordFunction::currentThreadId()};
}

bool Beginning::is_older(const Edge& edge) const {
  const Node& node = *edge.function;
  return as_leaf(edge) != nullptr || node.thread_id() != thread_ || node.sequence_nr() < number_;
}

Frontier::Frontier(Beginning begin, const Tensors& inputs) : begin_(begin) {
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || input.is_leaf()) continue;  // leaves are outside anyway
    of_inputs_.insert(torch::autograd::impl::gradient_edge(input).function.get());
  }
}

bool Frontier::is_outside(const Edge& edge) const {
  return begin_.is_older(edge) || of_inputs_.contains(edge.function.get());
}

// What may be a captured view of which somebody wrote to the base before the region: such a view
// makes its node when it is first used. One that the region makes itself is of no harm here.
bool Frontier::is_late_view(const Edge& edge) const {
  const Node& node = *edge.function;
  return !is_outside(edge) && node.num_outputs() == 1 && node.next_edge(0).is_valid() &&
         is_outside(node.next_edge(0)) && node.name() == "AsStridedBackward0";
}

void Frontier::add(const Edge& edge) {
  if (places_.emplace(key_of(edge), edges_.size()).second) edges_.push_back(edge);
}

void Frontier::collect(const edge_list& roots) {
  end_ = Beginning::now();
  for (const Edge& root : roots) {
    if (is_late_view(root)) add(root);
  }
  walk(roots, [&](const std::shared_ptr<Node>& node, std::size_t i) {
    const Edge& edge = node->next_edge(i);
    const bool outside = is_outside(edge);
    if (outside || is_late_view(edge)) add(edge);
    return !outside;
  });
}

std::optional<std::size_t> Frontier::find(const Edge& edge) const {
  const auto found = places_.find(key_of(edge));
  if (found == places_.end()) return std::nullopt;
  return found->second;
}

void Frontier::require_inside(const Edge& edge, Beginning begin) const {
  if (!begin.is_older(edge) && !of_inputs_.contains(edge.function.get())) return;
  const bool of_first_run = !begin_.is_older(edge) && end_.is_older(edge);
  const char* const reason = of_first_run ? "which is of its first run: pass what it captures as "
                                            "inputs, and write no results into it"
                                          : "which its outputs did not depend on in forward";
  throw base::Error(
      base::ErrorCode::kMisuse,
      fmt::format("a checkpointed region did something else when it ran again in backward: it uses "
                  "{}, {}",
                  describe(edge), reason));
}

// The nodes are all of the second run, so nobody else follows their edges meanwhile. They are
// set back because second-order gradients lead through them to what was there before.
CutGraph::CutGraph(const Frontier& frontier, edge_list& roots, Beginning begin)
    : frontier_(frontier), begin_(begin), ends_(frontier.edges().size()) {
  edge_list inside;
  for (Edge& root : roots) {
    if (auto end = replacement(root)) {
      root = std::move(*end);
    } else {
      inside.push_back(root);
    }
  }
  walk(inside, [&](const std::shared_ptr<Node>& node, std::size_t i) {
    const auto end = replacement(node->next_edge(i));
    if (!end) return true;
    // A write to a part of a tensor has the write's own node inside, with the same edges.
    const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(node.get());
    if (write != nullptr && i > 0) cut(write->fn, i, *end);
    cut(node, i, *end);
    return false;
  });
}

void CutGraph::cut(const std::shared_ptr<Node>& node, std::size_t index, const Edge& end) {
  cuts_.push_back({node, index, std::exchange(node->next_edges()[index], end)});
}

CutGraph::~CutGraph() {
  for (Cut& cut : cuts_) cut.node->next_edges()[cut.index] = std::move(cut.edge);
}

std::optional<Edge> CutGraph::replacement(const Edge& edge) {
  const auto place = frontier_.find(edge);
  if (!place) {
    frontier_.require_inside(edge, begin_);
    return std::nullopt;
  }
  std::shared_ptr<Node>& end = ends_[*place];
  if (end == nullptr) end = std::make_shared<End>(edge);
  return Edge{end, 0};
}

}  // namespace fullshard::recompute
