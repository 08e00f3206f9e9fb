#include "fullshard/shard/load_balancer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "fullshard/base/error.h"
#include "fullshard/base/machine.h"
#include "shard/checksum.h"
#include "shard/engine.h"

namespace fullshard::shard {
namespace {

void check(const LoadBalanceOptions& options) {
  const auto refuse = [](const std::string& message) {
    throw base::Error(base::ErrorCode::kInvalidArgument, message);
  };
  if (options.every < 1) refuse(fmt::format("every is {}; it has to be 1 at least", options.every));
  if (!std::isfinite(options.least_gain) || options.least_gain < 0) {
    refuse(fmt::format("least_gain is {}; it has to be 0 or above", options.least_gain));
  }
  if (options.memory_limit_bytes < 0) {
    refuse(fmt::format("memory_limit_bytes is {}; it has to be above 0, or 0 for no limit",
                       options.memory_limit_bytes));
  }
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kRelief = 1.25;  // of what a rank is over its limit

// Of a parameter that is cut; 0 for others.
double elements_of(const state::ShardedTensor& shard) {
  double count = shard.replicated ? 0 : 1;
  for (const std::int64_t size : shard.global_shape) count *= static_cast<double>(size);
  return count;
}

double itemsize(const at::Tensor& tensor) { return static_cast<double>(tensor.element_size()); }

}  // namespace

// What one rank tells the others.
struct LoadBalancer::Sample {
  double shard_rank = 0;
  double fixed = 0;    // seconds a step
  double owning = 0;   // seconds a step
  double owned = 0;    // elements
  double spare = 0;    // bytes up to its limit, below 0 beyond it
  double element = 0;  // bytes
  static constexpr std::int64_t kNumbers = 6;
};

LoadBalancer::LoadBalancer(ShardedModule sharded, std::vector<state::ElementState*> followers,
                           LoadBalanceOptions options)
    : sharded_(std::move(sharded)),
      followers_(std::move(followers)),
      options_(std::move(options)),
      steps_(-1) {
  check(options_);
  require_same_options();
  if (!options_.memory_in_use) {
    options_.memory_in_use = [] { return base::proportional_bytes(::getpid()).value_or(0); };
  }
}

void LoadBalancer::require_same_options() const {
  const std::array<double, 2> mine{static_cast<double>(options_.every), options_.least_gain};
  if (ranks_unlike_rank0(*sharded_.mesh().all, mine, {"load balance", -1}).empty()) return;
  throw base::Error(base::ErrorCode::kMismatch,
                    "every and least_gain of a LoadBalancer have to be the same on all ranks");
}

void LoadBalancer::note_memory() {
  const bool is_looking_soon = steps_ + 1 >= options_.every;
  if (options_.memory_limit_bytes == 0 || !is_looking_soon) return;
  most_bytes_ = std::max(most_bytes_, options_.memory_in_use());
}

std::optional<LoadBalance> LoadBalancer::end_step() {
  note_memory();
  if (++steps_ == 0) before_ = counted();
  if (steps_ < options_.every) return std::nullopt;
  LoadBalance found = weigh(exchange(sample()));
  choose(found);
  if (found.owned.size() > 1 && sum_of(found.owned) > 0 && is_wanted(found)) {
    found.moved = sharded_.move_shards(found.wanted, followers_);
  }
  steps_ = 0;
  most_bytes_ = 0;
  before_ = counted();
  return found;
}

LoadBalancer::Counted LoadBalancer::counted() const {
  const Counters counters = sharded_.counters();
  return {.when = std::chrono::steady_clock::now(),
          .waited = counters.exposed_comm_seconds - counters.reduction_seconds,
          .owning = counters.update_seconds + counters.reduction_seconds -
                    sharded_.engine_->seconds_for_others()};
}

double LoadBalancer::owned_elements() const {
  double elements = 0;
  for (const state::ShardedTensor& shard : sharded_.named_parameters()) {
    if (!shard.replicated) elements += static_cast<double>(shard.end - shard.begin);
  }
  return elements;
}

double LoadBalancer::model_elements() const {
  double elements = 0;
  for (const state::ShardedTensor& shard : sharded_.named_parameters()) {
    elements += elements_of(shard);
  }
  return elements;
}

// What a rank that owns an element has of it, on the average of the model; followers' part
// included.
double LoadBalancer::bytes_per_element() const {
  const auto& shards = sharded_.named_parameters();
  double kept = 0;
  for (state::ElementState* follower : followers_) {
    const auto tensors = follower->tensors(shards);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (const at::Tensor& tensor : tensors[i]) {
        if (tensor.defined()) kept += elements_of(shards[i]) * itemsize(tensor);
      }
    }
  }
  return sharded_.engine_->owned_element_bytes() + kept / std::max(model_elements(), 1.0);
}

LoadBalancer::Sample LoadBalancer::sample() const {
  const Counted now = counted();
  const double steps = steps_;
  const double all = std::chrono::duration<double>(now.when - before_.when).count();
  const double owning = now.owning - before_.owning;
  const double fixed = all - (now.waited - before_.waited) - owning;
  const auto limit = static_cast<double>(options_.memory_limit_bytes);
  return {.shard_rank = static_cast<double>(sharded_.mesh().shard->rank()),
          .fixed = std::max(fixed, 0.0) / steps,
          .owning = std::max(owning, 0.0) / steps,
          .owned = owned_elements(),
          .spare = limit == 0 ? kNoLimit : limit - static_cast<double>(most_bytes_),
          .element = bytes_per_element()};
}

std::vector<LoadBalancer::Sample> LoadBalancer::exchange(const Sample& mine) const {
  comm::Group& all = *sharded_.mesh().all;
  static_assert(sizeof(Sample) == Sample::kNumbers * sizeof(double));
  sharded_.engine_->take_part();
  std::vector<Sample> samples(static_cast<std::size_t>(all.size()));
  all.all_gather({&mine, Sample::kNumbers, base::DType::kFloat64},
                 {samples.data(), Sample::kNumbers * all.size(), base::DType::kFloat64}, {},
                 {"load balance", -1})
      .wait();
  return samples;
}

// Ranks that hold the same shard are as one: the slowest, with the least room. Where they divide
// its updates, each owns a part of it.
LoadBalance LoadBalancer::weigh(const std::vector<Sample>& samples) const {
  const auto sum = [&](double Sample::*number) {
    double total = 0;
    for (const Sample& sample : samples) total += sample.*number;
    return total;
  };
  const auto count = static_cast<double>(samples.size());
  const double copies = sum(&Sample::owned) / std::max(model_elements(), 1.0);
  const int replicas = sharded_.mesh().replicate->size();
  const bool divided = replicas > 1 && copies < 1.5;
  const double parts = divided ? replicas : 1;  // of a shard
  const double usual = sum(&Sample::owning) / std::max(sum(&Sample::owned), 1.0);
  const auto ranks = static_cast<std::size_t>(sharded_.mesh().shard->size());
  LoadBalance found{.loads = {ranks, layout::RankLoad{.most_elements = kNoLimit}},
                    .owned = std::vector<double>(ranks, 0.0),
                    .wanted = {}};
  for (const Sample& sample : samples) {
    const auto rank = static_cast<std::size_t>(sample.shard_rank);
    layout::RankLoad& load = found.loads[rank];
    // A rank that owns little tells little of what owning costs; it is as slow in that as in all.
    const bool tells = sample.owned > sum(&Sample::owned) / count / 16;
    const double slowness =
        sum(&Sample::fixed) == 0 ? 1 : sample.fixed * count / sum(&Sample::fixed);
    const double each = tells ? sample.owning / sample.owned : usual * slowness;
    // Beyond its limit a rank is to come well below it, so that noise does not move shares again.
    const bool is_over = sample.spare < 0;
    const double spare = is_over ? sample.spare * kRelief : sample.spare;
    const double most = std::max(sample.owned + spare / std::max(sample.element, 1.0), 0.0);
    found.over_limit = found.over_limit || is_over;
    load.fixed_seconds = std::max(load.fixed_seconds, sample.fixed);
    load.seconds_per_element = std::max(load.seconds_per_element, each / parts);
    load.most_elements = std::min(load.most_elements, most * parts);
    const double before = found.owned[rank];
    found.owned[rank] = divided ? before + sample.owned : std::max(before, sample.owned);
  }
  return found;
}

// Where there is not room for everything, speed alone decides.
void LoadBalancer::choose(LoadBalance& found) {
  const double elements = sum_of(found.owned);
  double room = 0;
  for (const layout::RankLoad& load : found.loads) room += load.most_elements;
  found.fits = room >= elements;
  std::vector<layout::RankLoad> loads = found.loads;
  if (!found.fits) {
    for (layout::RankLoad& load : loads) load.most_elements = kNoLimit;
  }
  found.wanted = layout::balance(loads, elements);
  found.seconds = layout::slowest(loads, found.owned);
  found.seconds_then = layout::slowest(loads, found.wanted);
}

// For speed, when two looks in a row promise it, since one may have seen a disturbance. For memory
// at once, but then not at the next look, because memory is given back late; and no more than has
// to be.
bool LoadBalancer::is_wanted(LoadBalance& found) {
  const bool is_quicker = found.seconds_then < found.seconds * (1 - options_.least_gain);
  const bool promised_before = std::exchange(promised_, is_quicker);
  const bool relieved_before = std::exchange(relieved_, false);
  if (is_quicker && promised_before) return true;
  if (!found.fits || !found.over_limit || relieved_before) return false;
  std::vector<double> most;
  for (const layout::RankLoad& load : found.loads) most.push_back(load.most_elements);
  found.wanted = layout::shed(found.owned, most);
  relieved_ = true;
  return true;
}

}  // namespace fullshard::shard
