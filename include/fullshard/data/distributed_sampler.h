#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fullshard/data/windows.h"

namespace fullshard::data {

/// What to do where the samples do not divide evenly among the ranks.
enum class Remainder {
  kPad,     ///< fewer than `world` samples come twice in an epoch (more often only if size < world)
  kDrop,    ///< the last samples of the order, fewer than `world`, are left out of the epoch
  kUneven,  ///< every sample comes exactly once; ranks differ by one sample: for evaluation. A rank
            ///< that has run out must still take part in collectives, rounds() says how often
};

struct DistributedSamplerOptions {
  std::int64_t size = -1;  ///< samples of the data set; must be given, >= 0
  int rank = 0;
  int world = 1;
  bool shuffle = true;     ///< false: samples come in the order of the data set
  std::uint64_t seed = 0;  ///< must be equal on all ranks
  Remainder remainder = Remainder::kPad;
};

/// Divides the samples of a data set among ranks, epoch by epoch: torch's DistributedSampler for
/// C++. It serves torch::data::make_data_loader, or next() or indices() without one.
///
///   DistributedSampler sampler({.size = size, .rank = rank, .world = world});
///   auto loader = torch::data::make_data_loader(dataset, sampler, options);
///   for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
///     sampler.set_epoch(epoch);
///     for (auto& batch : *loader) ...
///   }
///
/// An epoch's order depends on seed, epoch and size alone. Ranks take from it in turn, one sample
/// each, so that what all ranks have used together is always its front, whatever the world. No
/// table is held: memory is that of a batch.
///
/// Copies, also the one inside a data loader, share one state: what is called on one holds for all.
/// Give each loader a sampler of its own. One thread may use a sampler and its copies at a time (a
/// loader asks on the thread that iterates, not in its workers). Local: ranks do not wait for each
/// other. Errors are kInvalidArgument and leave the sampler as it was.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// The first pass begins at `start`.
  explicit DistributedSampler(DistributedSamplerOptions options, Cursor start = {});

  // Moving copies, so that a sampler which was moved into a loader still steers it.
  DistributedSampler(const DistributedSampler&) = default;
  DistributedSampler& operator=(const DistributedSampler&) = default;
  ~DistributedSampler() override = default;

  const DistributedSamplerOptions& options() const;

  /// The next pass is through this epoch, from its beginning; if that pass is already to begin
  /// inside the epoch, because of seek(), load() or `start`, then from there. A pass that is under
  /// way is not changed.
  void set_epoch(std::int64_t epoch);

  /// Goes on from `position`, which may come from a sampler of another world or remainder; the pass
  /// that is under way ends. 0 <= position.sample <= size. A data loader must not be iterating.
  void seek(Cursor position);

  /// Where the samples that next() has given leave all ranks, provided that all were asked for as
  /// many. The end of an epoch is the beginning of the next. Data loaders with workers ask ahead of
  /// what they yield: use position_after() with them.
  Cursor position() const;

  /// The same after each rank has used `samples_per_rank` of the latest pass, counted from where
  /// that began: batches taken from the loader * batch size (last batches may have been shorter).
  Cursor position_after(std::int64_t samples_per_rank) const;

  /// This rank's samples from `from` to the end of its epoch. Does not move the sampler.
  std::vector<std::size_t> indices(Cursor from = {}) const;

  /// How many samples indices(from) has, and how many it has on the rank with the most.
  std::int64_t local_size(Cursor from = {}) const;
  std::int64_t rounds(Cursor from = {}) const;

  /// Begins a pass, as data loaders do in begin(): through the epoch that set_epoch() named, else
  /// the next one after a pass that was finished, else the same one anew. A new size makes another
  /// order of every epoch, so the pass must not begin inside one.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  /// Up to batch_size samples; nothing at the end of the pass. Begins the first pass if need be.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Writes a position and what it holds for, as integers "epoch", "sample", "size", "seed" and
  /// "shuffle": one file serves all ranks. The first form writes position().
  void save(torch::serialize::OutputArchive& archive) const override;
  void save(torch::serialize::OutputArchive& archive, Cursor position) const;

  /// Goes on from the saved position. Rejects one of another size, seed or shuffle, where samples
  /// would be repeated or lost.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fullshard::data
