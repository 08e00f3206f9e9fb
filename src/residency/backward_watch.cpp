#include "fullshard/residency/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace fullshard::residency {

BackwardWatch::BackwardWatch(std::function<void()> on_end, std::function<void()> on_abandoned)
    : on_end_(std::move(on_end)), on_abandoned_(std::move(on_abandoned)) {}

bool BackwardWatch::note() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == -1) return false;
  if (task == task_ || (task_ != -1 && !alive_.expired())) return true;
  if (task_ != -1) on_abandoned_();
  task_ = task;
  const auto alive = std::make_shared<char>();
  alive_ = alive;
  torch::autograd::Engine::get_default_engine().queue_callback([this, alive] {
    task_ = -1;
    on_end_();
  });
  return true;
}

}  // namespace fullshard::residency
