#include "fullshard/data/distributed_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "data/counting_source.h"

namespace fullshard::data {
namespace {

using testing::HasSubstr;
using Indices = std::vector<std::size_t>;

constexpr Remainder kRemainders[] = {Remainder::kPad, Remainder::kDrop, Remainder::kUneven};

/// A sampler for each rank.
std::vector<DistributedSampler> samplers(DistributedSamplerOptions options, Cursor start = {}) {
  std::vector<DistributedSampler> all;
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    all.emplace_back(options, start);
  }
  return all;
}

void append(Indices& to, const Indices& from) { to.insert(to.end(), from.begin(), from.end()); }

/// What next() gives until the end of the pass.
Indices rest(DistributedSampler& sampler, std::size_t batch_size = 3) {
  Indices all;
  while (auto batch = sampler.next(batch_size)) append(all, *batch);
  return all;
}

Indices rest(std::vector<DistributedSampler>& ranks, std::size_t batch_size = 3) {
  Indices all;
  for (DistributedSampler& sampler : ranks) append(all, rest(sampler, batch_size));
  return all;
}

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

Indices first(std::size_t count) {
  Indices all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::set<std::size_t> set_of(const Indices& indices) { return {indices.begin(), indices.end()}; }

/// Batches are the indices that were asked for.
class Numbers : public torch::data::BatchDataset<Numbers, Indices> {
 public:
  explicit Numbers(std::size_t size) : size_(size) {}
  Indices get_batch(c10::ArrayRef<std::size_t> request) override { return request.vec(); }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

auto make_loader(const DistributedSampler& sampler, std::size_t batch_size, std::size_t workers) {
  return torch::data::make_data_loader(
      Numbers(static_cast<std::size_t>(sampler.options().size)), sampler,
      torch::data::DataLoaderOptions().batch_size(batch_size).workers(workers));
}

template <typename Loader>
Indices pass_of(Loader& loader) {
  Indices all;
  for (const Indices& batch : loader) append(all, batch);
  return all;
}

/// Orders of three epochs of a run over two ranks, rank after rank.
std::vector<std::vector<Indices>> run_of_three_epochs() {
  auto ranks = samplers({.size = 8, .world = 2, .seed = 5});
  std::vector<std::vector<Indices>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    auto& orders = epochs.emplace_back();
    for (DistributedSampler& sampler : ranks) {
      auto loader = make_loader(sampler, 2, 0);
      sampler.set_epoch(epoch);
      orders.push_back(pass_of(*loader));
    }
  }
  return epochs;
}

TEST(DistributedSampler, N4_EpochsDifferRunsAgreeAndRanksNeverOverlap) {
  const auto epochs = run_of_three_epochs();
  EXPECT_EQ(epochs, run_of_three_epochs());
  std::set<Indices> orders_of_rank0;
  for (const auto& ranks : epochs) {
    orders_of_rank0.insert(ranks[0]);
    EXPECT_EQ(ranks[0].size(), 4u);
    Indices both = ranks[0];
    append(both, ranks[1]);
    EXPECT_EQ(sorted(both), first(8));
  }
  EXPECT_EQ(orders_of_rank0.size(), 3u) << "two epochs had the same order";
}

TEST(DistributedSampler, J5_EvaluationSeesEverySampleOnceInAnyWorld) {
  for (int world = 1; world <= 4; ++world) {
    for (const bool shuffle : {false, true}) {
      auto ranks = samplers(
          {.size = 21, .world = world, .shuffle = shuffle, .remainder = Remainder::kUneven});
      Indices all;
      for (DistributedSampler& sampler : ranks) {
        auto loader = make_loader(sampler, 2, 0);
        append(all, pass_of(*loader));
      }
      EXPECT_EQ(all.size(), 21u) << world;
      EXPECT_EQ(sorted(all), first(21)) << world;
    }
  }
}

TEST(DistributedSampler, N1_AnInterruptedRunGoesOnAsIfItHadNotBeen) {
  auto whole = samplers({.size = 30, .world = 3, .seed = 9}, {.epoch = 1});
  for (DistributedSampler& sampler : whole) {
    const Indices all = sampler.indices({.epoch = 1});
    Indices parts = *sampler.next(4);
    EXPECT_EQ(sampler.position(), (Cursor{1, 12}));
    DistributedSampler resumed(sampler.options(), sampler.position());
    resumed.set_epoch(1);  // as a training loop does first
    append(parts, rest(resumed));
    EXPECT_EQ(parts, all);
    EXPECT_EQ(resumed.position(), (Cursor{2, 0}));
  }
}

TEST(DistributedSampler, N3_AnInterruptedRunGoesOnAtAnotherWorld) {
  for (const int world : {1, 2, 3, 4, 5, 7, 30}) {
    auto before = samplers({.size = 30, .world = 3, .seed = 9});
    Indices seen;
    for (DistributedSampler& sampler : before) append(seen, *sampler.next(4));
    auto after = samplers({.size = 30, .world = world, .seed = 9, .remainder = Remainder::kUneven},
                          before[0].position());
    append(seen, rest(after));
    EXPECT_EQ(sorted(seen), first(30)) << "repeated or lost at world " << world;
    for (const DistributedSampler& sampler : after) {
      EXPECT_EQ(sampler.position(), (Cursor{1, 0}));
    }
  }
}

TEST(DistributedSampler, StepsHaveTheSameSamplesInAnyWorld) {
  const DistributedSamplerOptions options{.size = 24, .seed = 2};
  const Indices alone = DistributedSampler(options).indices();
  for (const int world : {2, 3, 4, 6, 12}) {
    auto ranks = samplers({.size = 24, .world = world, .seed = 2});
    for (std::ptrdiff_t step = 0; step < 2; ++step) {
      Indices together;
      for (DistributedSampler& sampler : ranks) {
        append(together, *sampler.next(static_cast<std::size_t>(12 / world)));
      }
      EXPECT_EQ(sorted(together),
                sorted({alone.begin() + step * 12, alone.begin() + (step + 1) * 12}));
    }
  }
}

TEST(DistributedSampler, AnEpochIsComplete) {
  for (const Remainder remainder : kRemainders) {
    for (std::int64_t size = 0; size <= 23; ++size) {
      for (int world = 1; world <= 9; ++world) {
        SCOPED_TRACE(testing::Message()
                     << static_cast<int>(remainder) << ' ' << size << ' ' << world);
        auto ranks = samplers({.size = size, .world = world, .seed = 1, .remainder = remainder});
        Indices all;
        for (DistributedSampler& sampler : ranks) {
          const Indices own = sampler.indices({.epoch = 2});
          EXPECT_EQ(static_cast<std::int64_t>(own.size()), sampler.local_size());
          EXPECT_LE(sampler.rounds() - sampler.local_size(), remainder == Remainder::kUneven);
          sampler.set_epoch(2);
          EXPECT_EQ(rest(sampler, 2), own);
          EXPECT_EQ(sampler.position(), (Cursor{3, 0}));
          append(all, own);
        }
        const auto distinct = static_cast<std::int64_t>(set_of(all).size());
        const auto count = static_cast<std::int64_t>(all.size());
        const std::int64_t whole = size / world * world;
        if (remainder == Remainder::kPad) {
          EXPECT_EQ(count, whole == size ? size : whole + world);
          EXPECT_EQ(distinct, size);
        } else {
          EXPECT_EQ(count, remainder == Remainder::kDrop ? whole : size);
          EXPECT_EQ(distinct, count) << "ranks overlap";
        }
      }
    }
  }
}

TEST(DistributedSampler, PaddingRepeatsTheFrontOfTheOrder) {
  const Indices order = DistributedSampler({.size = 7, .seed = 3}).indices();
  const auto ranks = samplers({.size = 7, .world = 3, .seed = 3});
  EXPECT_EQ(ranks[0].indices(), (Indices{order[0], order[3], order[6]}));
  EXPECT_EQ(ranks[1].indices(), (Indices{order[1], order[4], order[0]}));
  EXPECT_EQ(ranks[2].indices(), (Indices{order[2], order[5], order[1]}));
  for (const DistributedSampler& sampler : samplers({.size = 2, .world = 5, .shuffle = false})) {
    EXPECT_EQ(sampler.indices(), (Indices{static_cast<std::size_t>(sampler.options().rank) % 2}));
  }
}

TEST(DistributedSampler, AnyPointOfAnEpochCanBeResumedAnywhere) {
  for (const std::int64_t size : {1, 2, 13, 20}) {
    for (int before = 1; before <= 5; ++before) {
      for (int after = 1; after <= 5; ++after) {
        for (std::size_t stop = 1; stop <= 20; ++stop) {
          auto ranks = samplers({.size = size, .world = before, .remainder = Remainder::kUneven});
          Indices seen;
          for (DistributedSampler& sampler : ranks)
            append(seen, sampler.next(stop).value_or(Indices{}));
          const Cursor position = ranks[0].position();
          for (const DistributedSampler& sampler : ranks) ASSERT_EQ(sampler.position(), position);
          if (position.epoch == 0) {
            auto resumed =
                samplers({.size = size, .world = after, .remainder = Remainder::kUneven}, position);
            append(seen, rest(resumed, 2));
          }
          ASSERT_EQ(sorted(seen), first(static_cast<std::size_t>(size)))
              << before << ' ' << after << ' ' << stop;
        }
      }
    }
  }
}

TEST(DistributedSampler, ResumingDropsAndPadsLessThanAWorld) {
  auto dropping =
      samplers({.size = 21, .world = 4, .remainder = Remainder::kDrop}, {.epoch = 0, .sample = 15});
  EXPECT_EQ(rest(dropping).size(), 4u);
  EXPECT_EQ(dropping[3].position(), (Cursor{1, 0}));
  auto padding =
      samplers({.size = 21, .world = 4, .remainder = Remainder::kPad}, {.epoch = 0, .sample = 15});
  EXPECT_EQ(rest(padding).size(), 8u);
  EXPECT_EQ(padding[3].position(), (Cursor{1, 0}));
}

TEST(DistributedSampler, TheSamplerKeptOutsideSteersTheOneInTheLoader) {
  for (const std::size_t workers : {0u, 2u}) {
    DistributedSampler sampler({.size = 40, .rank = 1, .world = 3, .seed = 4});
    auto loader = make_loader(sampler, 4, workers);
    for (const std::int64_t epoch : {0, 1, 5, 5, 0}) {
      sampler.set_epoch(epoch);
      EXPECT_EQ(pass_of(*loader), sampler.indices({.epoch = epoch})) << epoch;
    }
    auto moved_into = torch::data::make_data_loader(Numbers(40), std::move(sampler), 4);
    sampler.set_epoch(3);  // NOLINT(bugprone-use-after-move): moving copies, see the header
    EXPECT_EQ(pass_of(*moved_into), sampler.indices({.epoch = 3}));
  }
}

TEST(DistributedSampler, WithoutSetEpochAFinishedPassIsFollowedByTheNextEpoch) {
  for (const std::size_t workers : {0u, 2u}) {
    DistributedSampler sampler({.size = 16, .world = 2});
    auto loader = make_loader(sampler, 4, workers);
    EXPECT_EQ(pass_of(*loader), sampler.indices({.epoch = 0}));
    EXPECT_EQ(pass_of(*loader), sampler.indices({.epoch = 1}));
  }
  DistributedSampler broken_off({.size = 16, .world = 2});
  broken_off.next(2);
  broken_off.reset();
  EXPECT_EQ(rest(broken_off), broken_off.indices({.epoch = 0}));
}

TEST(DistributedSampler, SetEpochLeavesThePassThatIsUnderWay) {
  DistributedSampler sampler({.size = 20, .seed = 8});
  Indices seen = *sampler.next(5);
  sampler.set_epoch(7);
  EXPECT_EQ(sampler.position(), (Cursor{0, 5}));
  append(seen, rest(sampler));
  EXPECT_EQ(seen, sampler.indices({.epoch = 0}));
  EXPECT_EQ(sampler.position(), (Cursor{7, 0}));
  EXPECT_EQ(sampler.next(1), std::nullopt);
  sampler.reset();
  EXPECT_EQ(rest(sampler), sampler.indices({.epoch = 7}));
}

TEST(DistributedSampler, ALoaderThatReadsAheadIsResumedAfterWhatItYielded) {
  for (const std::size_t workers : {0u, 2u}) {
    DistributedSampler sampler({.size = 30, .rank = 2, .world = 3, .seed = 6});
    auto loader = make_loader(sampler, 2, workers);
    Indices seen;
    std::int64_t batches = 0;
    for (const Indices& batch : *loader) {
      append(seen, batch);
      if (++batches == 2) break;
    }
    const Cursor position = sampler.position_after(batches * 2);
    EXPECT_EQ(position, (Cursor{0, 12}));
    if (workers > 0) EXPECT_NE(sampler.position(), position) << "nothing was asked for ahead";

    DistributedSampler resumed(sampler.options());
    auto resumed_loader = make_loader(resumed, 2, workers);
    resumed.seek(position);
    resumed.set_epoch(position.epoch);
    append(seen, pass_of(*resumed_loader));
    EXPECT_EQ(seen, sampler.indices({.epoch = 0}));
    EXPECT_EQ(resumed.position_after(6), (Cursor{1, 0})) << "counted from where the pass began";
    EXPECT_EQ(resumed.position_after(5), (Cursor{0, 27}));
    resumed.set_epoch(1);
    EXPECT_EQ(pass_of(*resumed_loader), resumed.indices({.epoch = 1}));
  }
}

TEST(DistributedSampler, IsSavedAndLoadedByTorchAlsoForAnotherWorld) {
  const std::uint64_t seed = std::numeric_limits<std::uint64_t>::max() - 1;
  auto before = samplers({.size = 30, .world = 3, .seed = seed}, {.epoch = 2});
  Indices seen;
  for (DistributedSampler& sampler : before) append(seen, *sampler.next(4));
  std::stringstream file;
  torch::save(before[1], file);
  auto after = samplers({.size = 30, .world = 2, .seed = seed});
  for (DistributedSampler& sampler : after) {
    file.seekg(0);
    torch::load(sampler, file);
    EXPECT_EQ(sampler.position(), (Cursor{2, 12}));
  }
  append(seen, rest(after));
  EXPECT_EQ(sorted(seen), first(30));
}

TEST(DistributedSampler, SavesAPositionThatTheCallerKnowsBetter) {
  const DistributedSampler sampler({.size = 30, .world = 3});
  std::stringstream file;
  torch::serialize::OutputArchive out;
  sampler.save(out, {.epoch = 1, .sample = 9});
  out.save_to(file);
  DistributedSampler loaded(sampler.options());
  torch::load(loaded, file);
  EXPECT_EQ(loaded.position(), (Cursor{1, 9}));
}

std::string error_of_loading(DistributedSamplerOptions saved, DistributedSamplerOptions own) {
  std::stringstream file;
  torch::save(DistributedSampler(saved), file);
  DistributedSampler sampler(own);
  sampler.seek({.epoch = 4, .sample = 2});
  const std::string error =
      error_of(base::ErrorCode::kInvalidArgument, [&] { torch::load(sampler, file); });
  EXPECT_EQ(sampler.position(), error == "no error" ? Cursor{} : (Cursor{4, 2}));
  return error;
}

TEST(DistributedSampler, LoadingRejectsAPositionInAnotherOrder) {
  EXPECT_THAT(error_of_loading({.size = 30}, {.size = 31}),
              HasSubstr("the saved position is one of size 30, this sampler's size is 31"));
  EXPECT_THAT(error_of_loading({.size = 9, .seed = 1}, {.size = 9}), HasSubstr("seed 1"));
  EXPECT_THAT(error_of_loading({.size = 9, .shuffle = false}, {.size = 9}), HasSubstr("shuffle 0"));
  EXPECT_EQ(error_of_loading({.size = 9, .shuffle = false, .seed = 1},
                             {.size = 9, .shuffle = false, .seed = 2}),
            "no error");
  std::stringstream file;
  torch::save(torch::zeros(1), file);
  DistributedSampler sampler({.size = 9});
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [&] { torch::load(sampler, file); }),
              HasSubstr("the archive holds no integer \"size\""));
}

TEST(DistributedSampler, WithoutShufflingKeepsTheOrderOfTheData) {
  const auto ranks = samplers({.size = 6, .world = 2, .shuffle = false});
  EXPECT_EQ(ranks[0].indices({.epoch = 3}), (Indices{0, 2, 4}));
  EXPECT_EQ(ranks[1].indices({.epoch = 3}), (Indices{1, 3, 5}));
}

TEST(DistributedSampler, KeepsItsOrderForeverAndSeedsDiffer) {
  // Pinned: a resumed run must meet the samples in the order in which they were left.
  EXPECT_EQ(DistributedSampler({.size = 10, .seed = 1}).indices({.epoch = 2}),
            (Indices{9, 1, 3, 5, 7, 0, 8, 6, 2, 4}));
  EXPECT_NE(DistributedSampler({.size = 10, .seed = 2}).indices({.epoch = 2}),
            DistributedSampler({.size = 10, .seed = 1}).indices({.epoch = 2}));
}

TEST(DistributedSampler, ShufflesWell) {
  // Which sample comes first in an epoch: uniform over 10, 400 expected each, deviation 19.
  const DistributedSampler sampler({.size = 10, .seed = 11});
  std::map<std::size_t, int> count;
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch) {
    ++count[sampler.indices({.epoch = epoch})[0]];
  }
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(count[i], 400, 95) << i;
}

TEST(DistributedSampler, HoldsNoTable) {
  const std::int64_t size = std::int64_t{1} << 60;
  DistributedSampler sampler({.size = size, .rank = 4, .world = 5});
  EXPECT_EQ(sampler.next(3)->size(), 3u);
  EXPECT_EQ(sampler.position(), (Cursor{0, 15}));
  sampler.seek({.epoch = 1, .sample = size - 3});
  EXPECT_EQ(sampler.next(std::numeric_limits<std::size_t>::max())->size(), 1u);
  EXPECT_EQ(sampler.position(), (Cursor{2, 0}));
}

TEST(DistributedSampler, TakesANewSizeBetweenEpochs) {
  DistributedSampler sampler({.size = 9, .world = 3});
  sampler.reset(12);
  EXPECT_EQ(sampler.options().size, 12);
  EXPECT_EQ(rest(sampler).size(), 4u);
  sampler.seek({.epoch = 1, .sample = 6});
  EXPECT_THAT(error_of(base::ErrorCode::kInvalidArgument, [&] { sampler.reset(9); }),
              HasSubstr("size cannot change from 12 to 9 before sample 6 of epoch 1"));
  EXPECT_EQ(sampler.position(), (Cursor{1, 6}));
}

TEST(DistributedSampler, NamesTheFieldThatCannotBeUsed) {
  const auto error = [](DistributedSamplerOptions options, Cursor start = {}) {
    return error_of(base::ErrorCode::kInvalidArgument, [&] { DistributedSampler(options, start); });
  };
  EXPECT_THAT(error({}), HasSubstr("size must be at least 0, not -1"));
  EXPECT_THAT(error({.size = std::numeric_limits<std::int64_t>::max()}), HasSubstr("too large"));
  EXPECT_THAT(error({.size = 4, .world = 0}), HasSubstr("world must be at least 1, not 0"));
  EXPECT_THAT(error({.size = 4, .rank = 2, .world = 2}),
              HasSubstr("rank must be from 0 to 1, not 2"));
  EXPECT_THAT(error({.size = 4, .rank = -1}), HasSubstr("rank must be"));
  EXPECT_THAT(error({.size = 4}, {.epoch = -1}), HasSubstr("epoch must be at least 0, not -1"));
  EXPECT_THAT(error({.size = 4}, {.sample = 5}), HasSubstr("sample must be from 0 to the size 4"));
}

TEST(DistributedSampler, NamesTheArgumentThatCannotBeUsed) {
  DistributedSampler sampler({.size = 4});
  const auto error = [](const std::function<void()>& call) {
    return error_of(base::ErrorCode::kInvalidArgument, call);
  };
  EXPECT_THAT(error([&] { sampler.set_epoch(-2); }), HasSubstr("epoch must"));
  EXPECT_THAT(error([&] { sampler.next(0); }), HasSubstr("batch_size must be at least 1"));
  EXPECT_THAT(error([&] { sampler.position_after(-1); }), HasSubstr("samples_per_rank must"));
  EXPECT_THAT(error([&] { sampler.indices({.sample = -1}); }), HasSubstr("sample must"));
}

}  // namespace
}  // namespace fullshard::data
