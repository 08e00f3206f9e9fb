#include "fullshard/residency/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace fullshard::residency {

bool BackwardWatch::note() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == -1) return false;
  if (task == task_ || is_inside()) return true;
  if (task_ != -1) events_.abandoned();
  task_ = task;
  torch::autograd::Engine::get_default_engine().queue_callback([this, token = token_] {
    task_ = -1;
    events_.end();
  });
  events_.begin();
  return true;
}

// The engine's copy of the token goes with the pass.
bool BackwardWatch::is_inside() const { return task_ != -1 && token_.use_count() > 1; }

}  // namespace fullshard::residency
