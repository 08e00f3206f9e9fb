#pragma once

#include <memory>

#include "fullshard/bench/step_spec.h"
#include "fullshard/comm/mesh.h"
#include "fullshard/models/gpt.h"
#include "fullshard/shard/counters.h"

namespace fullshard::bench::measure {

/// A model in training: what differs between plain and sharded.
class Trainee {
 public:
  virtual ~Trainee() = default;

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    return model_->loss(tokens, targets);
  }

  /// Norm of the whole gradient. Collective when sharded.
  virtual double grad_norm() = 0;

  /// One step of the optimizer, after which there are no gradients.
  virtual void update() = 0;

  virtual shard::Counters counters() const = 0;
  virtual void reset_peaks() = 0;

 protected:
  explicit Trainee(models::Gpt model) : model_(std::move(model)) {}
  models::Gpt model_;
};

/// Initial values depend on the shape alone. Sharded over `mesh` if the spec says so.
std::unique_ptr<Trainee> make_trainee(const StepSpec& spec, const comm::Mesh& mesh);

models::GptOptions gpt_options(const StepShape& shape);

}  // namespace fullshard::bench::measure
