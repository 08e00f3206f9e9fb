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
  const bool is_alive = token_.use_count() > 1;  // the engine's copy goes with the pass
  if (task == task_ || (task_ != -1 && is_alive)) return true;
  if (task_ != -1) on_abandoned_();
  task_ = task;
  torch::autograd::Engine::get_default_engine().queue_callback([this, token = token_] {
    task_ = -1;
    on_end_();
  });
  return true;
}

}  // namespace fullshard::residency
