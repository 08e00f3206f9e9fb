#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fullshard/comm/mesh.h"
#include "fullshard/shard/communication_hook.h"
#include "shard/flat_unit.h"
#include "shard/gradient_flags.h"
#include "shard/own_gradient.h"
#include "shard/reduce_bucket.h"

namespace fullshard::shard {

/// What the reducer counted for one unit.
struct UnitReduction {
  std::int64_t reductions = 0;
  std::int64_t bytes_read = 0;  ///< of other ranks' gradients
};

/// Averages gradients over all ranks of a mesh and gives each rank those of its shards. What is
/// here counts what is complete and keeps the shards' .grad; how gradients meet those of other
/// ranks is a matter of the derived classes.
///
/// Every backward pass that produced a gradient and synchronises is one round, on every rank. One
/// more begins in a pass where a unit that was handed over gets another gradient, from a backward
/// pass inside this one; all ranks must do so alike.
class GradientReducer {
 public:
  struct Options {
    double divide_factor = 0;  ///< gradients are the sum over ranks divided by this; 0: their mean
    double predivide_factor = 1;    ///< FullyShardOptions::gradient_predivide_factor
    std::int64_t bucket_bytes = 0;  ///< FullyShardOptions::reduce_bucket_bytes
    bool dynamic = false;           ///< FullyShardOptions::dynamic
    CommunicationHook hook = {};    ///< FullyShardOptions::communication_hook
  };

  /// Collective. `units` and the mesh's groups must outlive the reducer.
  static std::unique_ptr<GradientReducer> make(const comm::Mesh& mesh, std::vector<FlatUnit>& units,
                                               const Options& options);

  virtual ~GradientReducer() = default;

  /// `shards[u]` are this rank's shard tensors of unit u in layout order; their .grad() is set.
  /// Once, before the first backward.
  void set_shards(std::vector<std::vector<at::Tensor>> shards) { shards_ = std::move(shards); }

  /// Units have been cut otherwise; no shard has a gradient.
  virtual void move();

  /// Takes the gradient of one parameter. Called inside backward.
  void add(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);

  /// A step of this thread begins, or goes on, and ends.
  virtual void begin_step() {}
  virtual void end_step() {}

  /// Gives back the memory of reduced gradients that no shard has any more.
  void release_unused();

  /// Whether backward passes from now on reduce what they make. While off, gradients add up on this
  /// rank, whole, and no rank waits for another; the next pass with it on reduces the sum. All
  /// ranks switch alike. Not to be called inside backward.
  void set_sync(bool sync) { sync_ = sync; }

  /// Ends a backward pass. With sync, completes the round: units that got no or not all gradients
  /// count what is missing as zero. A parameter without a gradient on every rank keeps an undefined
  /// one, as in unsharded training.
  void finish_pass();

  /// Forgets what a backward pass that threw has made, but not what passes without sync had left
  /// before it. Throws base::Error(kMisuse) when it had handed gradients to other ranks, from then
  /// on, or had added some to those of earlier passes, until discard_unsynchronised(). A rank by
  /// itself keeps in the shards' .grad what unsharded training would have there.
  void abandon_round();

  /// Not inside a pass: forgets gradients that passes without sync, or that threw, have left, of
  /// all parameters or of one.
  void discard_unsynchronised();
  void discard_unsynchronised(std::size_t unit, std::size_t parameter);
  /// Between passes: makes zero what they have left of one parameter.
  void zero_unsynchronised(std::size_t unit, std::size_t parameter);
  /// Between passes: whether there may be such gradients.
  bool holds_unsynchronised() const { return in_round_; }

  /// Takes back the memory of gradients that every rank has read.
  virtual void collect() {}

  /// Reductions of all units, those of one bucket counted once.
  virtual std::int64_t collectives() const;

  const UnitReduction& reduction(std::size_t unit) const { return counts_[unit]; }
  std::int64_t unreduced_bytes() const { return held_bytes_; }
  std::int64_t peak_unreduced_bytes() const { return peak_held_bytes_; }
  void reset_peak() { peak_held_bytes_ = held_bytes_; }
  std::int64_t copied_bytes() const { return copied_bytes_; }
  std::int64_t gradient_bytes() const;
  double exposed_seconds() const { return exposed_seconds_; }
  double exposed_seconds(std::size_t unit) const { return unit_exposed_[unit]; }
  double reduction_seconds() const { return reduction_seconds_; }
  std::int64_t reductions_for_others() const { return reductions_for_others_; }
  double seconds_for_others() const { return seconds_for_others_; }

 protected:
  GradientReducer(std::vector<FlatUnit>& units, int rank);

  /// The unit gets its first gradient of the round, or its absence is about to be noted.
  virtual void enter_unit(std::size_t unit) = 0;
  /// Keeps a gradient until the unit is complete, or adds it to one kept in an earlier pass.
  virtual void keep(std::size_t unit, std::size_t parameter, const at::Tensor& gradient) = 0;
  /// Forgets what was kept for a unit that was not handed over, or for one parameter of it.
  virtual void forget(std::size_t unit) = 0;
  virtual void forget(std::size_t unit, std::size_t parameter) = 0;
  /// What was kept for a parameter of such a unit; undefined where nothing was.
  virtual at::Tensor kept(std::size_t unit, std::size_t parameter) = 0;
  /// Whether gradients are the shards' as they come, because there are no other ranks.
  virtual bool gives_directly() const { return false; }
  /// Whether units are handed over inside backward, as they become complete.
  virtual bool hands_over_early() const { return true; }
  /// Gives this rank's gradients of a complete unit to the others. Does not wait.
  virtual void hand_over(std::size_t unit) = 0;
  /// The same at the end of the round for units that are not complete.
  virtual void hand_over_rest(const std::vector<std::size_t>& rest) = 0;
  /// Goes on with units that were handed over, as far as that needs no waiting.
  virtual void poll() = 0;
  /// Waits for all units that were handed over and reduces them.
  virtual void finish_units() = 0;

  void begin_unit(std::size_t unit);
  /// Makes the parameter's part of the reduced gradient the .grad of its shard.
  void attach(std::size_t unit, std::size_t parameter);
  /// Whether the shard has a gradient to add to. One that the user has set is taken over.
  bool holds_gradient(std::size_t unit, std::size_t parameter);
  /// Makes what is at `means`, the mean over ranks of what this rank owns of a bucket's units, the
  /// shards' gradients, or adds it to them, times `scale`; only for parameters whose flag is set.
  void store_means(const Bucket& bucket, std::byte* means, double scale);
  void count_held(std::int64_t bytes);
  void mark_handed_over(std::size_t unit) { handed_over_[unit] = true; }
  /// What gradients that this pass keeps are in: exact where others are to be added to them.
  at::ScalarType kept_dtype(const FlatUnit& unit, at::ScalarType when_reduced) const {
    return sync_ ? when_reduced : unit.exact_dtype();
  }

  std::vector<FlatUnit>& units_;
  std::vector<std::vector<at::Tensor>> shards_;
  std::vector<OwnGradient> own_;  // by unit; what the shards' gradients are parts of
  std::uint64_t round_ = 0;       // of the last round begun
  std::vector<UnitReduction> counts_;
  std::vector<double> unit_exposed_;
  double exposed_seconds_ = 0;
  double reduction_seconds_ = 0;  // of those, in which this rank added gradients up
  std::int64_t copied_bytes_ = 0;
  std::int64_t reductions_for_others_ = 0;
  double seconds_for_others_ = 0;  // of reduction_seconds_

 private:
  void store_mean(const CompleteUnit& complete, std::byte* mean, double scale);
  void begin_round();
  void finish_round();
  bool keeps_any(std::size_t unit);
  bool holds_unsynchronised(std::size_t unit) const {
    return in_round_ && begun_[unit] && !handed_over_[unit];
  }

  int rank_;
  bool in_round_ = false;
  bool sync_ = true;
  std::vector<bool> begun_;              // by unit: it was entered in this round
  std::vector<std::int64_t> remaining_;  // by unit: gradients to come in this pass, -1 for all
  std::vector<bool> handed_over_;        // by unit: in this round
  std::vector<bool> has_earlier_;        // by unit: gradients of passes of this round that are over
  std::int64_t held_bytes_ = 0;
  std::int64_t peak_held_bytes_ = 0;
};

/// Whether a gradient that autograd is about to store may be kept without a copy.
bool is_only_ours(const at::Tensor& gradient);

at::Tensor to_dense(const at::Tensor& gradient);

/// What turns the mean over all ranks into what the options ask for.
double scale_of_mean(const comm::Group& all, const GradientReducer::Options& options);

/// Received by a rank for an all_reduce of `bytes` bytes.
std::int64_t all_reduce_bytes(const comm::Group& group, std::int64_t bytes);

}  // namespace fullshard::shard
