#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fullshard/recompute/checkpoint.h"

namespace fullshard::recompute {

/// When a run of a region began, in its thread.
class Beginning {
 public:
  static Beginning now();

  /// Whether the edge leads to a parameter or to what was there before. Each thread numbers its
  /// nodes by itself, so those of others count as what was there before.
  bool is_older(const torch::autograd::Edge& edge) const;

 private:
  Beginning(std::uint64_t number, std::uint64_t thread) : number_(number), thread_(thread) {}
  std::uint64_t number_;  // of the next node
  std::uint64_t thread_;
};

/// Where the graph of a region ends: the edges from its nodes to parameters and to what was there
/// before it ran.
class Frontier {
 public:
  Frontier(Beginning begin, const Tensors& inputs);

  /// Whether the edge leads out of the region.
  bool is_outside(const torch::autograd::Edge& edge) const;

  /// Adds the edges that lead out of the graph under `roots`, none of which is outside itself. To
  /// be called when the region has run.
  void collect(const torch::autograd::edge_list& roots);

  const torch::autograd::edge_list& edges() const { return edges_; }

  /// The edge's place among edges().
  std::optional<std::size_t> find(const torch::autograd::Edge& edge) const;

  /// Throws base::Error(kMisuse) for an edge that leads to something which the first run did not
  /// use; `begin` is the second run's.
  void require_inside(const torch::autograd::Edge& edge, Beginning begin) const;

 private:
  bool is_late_view(const torch::autograd::Edge& edge) const;
  void add(const torch::autograd::Edge& edge);

  using Key = std::pair<const torch::autograd::Node*, std::uint32_t>;
  static Key key_of(const torch::autograd::Edge& edge) {
    return {edge.function.get(), edge.input_nr};
  }
  Beginning begin_;
  Beginning end_ = begin_;
  std::unordered_set<const torch::autograd::Node*> of_inputs_;
  torch::autograd::edge_list edges_;
  std::map<Key, std::size_t> places_;
};

/// While it lives, the graph of a region that ran again ends at ends of its own in place of the
/// frontier. A pass over it reaches none of what the rest of the graph shares with it: hooks of
/// parameters and inputs run in the outer pass alone.
class CutGraph {
 public:
  /// `roots` become the edges at which a pass over the cut graph begins.
  CutGraph(const Frontier& frontier, torch::autograd::edge_list& roots, Beginning begin);
  CutGraph(const CutGraph&) = delete;
  CutGraph& operator=(const CutGraph&) = delete;
  ~CutGraph();

  /// The end in place of edges()[place] of the frontier; not valid when nothing leads there.
  torch::autograd::Edge end(std::size_t place) const { return {ends_[place], 0}; }

 private:
  struct Cut {
    std::shared_ptr<torch::autograd::Node> node;
    std::size_t index;
    torch::autograd::Edge edge;
  };
  void cut(const std::shared_ptr<torch::autograd::Node>& node, std::size_t index,
           const torch::autograd::Edge& end);
  std::optional<torch::autograd::Edge> replacement(const torch::autograd::Edge& edge);

  const Frontier& frontier_;
  Beginning begin_;
  std::vector<std::shared_ptr<torch::autograd::Node>> ends_;
  std::vector<Cut> cuts_;
};

}  // namespace fullshard::recompute
