#pragma once

#include <memory>
#include <utility>

#include "bench/measure/subject.h"
#include "fullshard/bench/step_spec.h"
#include "fullshard/comm/mesh.h"
#include "fullshard/shard/counters.h"

namespace fullshard::bench::measure {

/// A model in training: what differs between plain and sharded.
class Trainee {
 public:
  virtual ~Trainee() = default;

  /// Mean over the rows of `batch`: when sharded this rank's, and otherwise those of all ranks. A
  /// model that depends on which rows are together gets those of each rank by themselves.
  virtual at::Tensor loss(const Batch& batch) = 0;

  const Subject& subject() const { return subject_; }

  /// Norm of the whole gradient. Collective when sharded.
  virtual double grad_norm() = 0;

  /// One step of the optimizer, after which there are no gradients.
  virtual void update() = 0;

  virtual shard::Counters counters() const = 0;
  virtual void reset_peaks() = 0;

 protected:
  explicit Trainee(Subject subject) : subject_(std::move(subject)) {}
  Subject subject_;
};

/// Initial values depend on the shape alone. Sharded over `mesh` if the spec says so.
std::unique_ptr<Trainee> make_trainee(const StepSpec& spec, const comm::Mesh& mesh);

}  // namespace fullshard::bench::measure
