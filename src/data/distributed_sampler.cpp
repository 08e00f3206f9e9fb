#include "fullshard/data/distributed_sampler.h"

#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <limits>

#include "fullshard/base/error.h"
#include "fullshard/data/permutation.h"

namespace fullshard::data {
namespace {

[[noreturn]] void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kInvalidArgument, "distributed sampler: " + message);
}

void validate_size(std::int64_t size, int world) {
  if (size < 0) reject(fmt::format("size must be at least 0, not {}", size));
  // Padding counts up to the next multiple of the world.
  if (size > std::numeric_limits<std::int64_t>::max() - world) {
    reject(fmt::format("size {} is too large", size));
  }
}

void validate(const DistributedSamplerOptions& options) {
  if (options.world < 1) reject(fmt::format("world must be at least 1, not {}", options.world));
  if (options.rank < 0 || options.rank >= options.world) {
    reject(fmt::format("rank must be from 0 to {}, not {}", options.world - 1, options.rank));
  }
  validate_size(options.size, options.world);
}

void validate(Cursor cursor, std::int64_t size) {
  if (cursor.epoch < 0) reject(fmt::format("epoch must be at least 0, not {}", cursor.epoch));
  if (cursor.sample < 0 || cursor.sample > size) {
    reject(fmt::format("sample must be from 0 to the size {}, not {}", size, cursor.sample));
  }
}

/// What is left of an epoch from a place of its order on, dealt out in rounds: one sample for each
/// rank. Places from the size on stand for the front of the order again. Immutable.
class Pass {
 public:
  Pass(const DistributedSamplerOptions& options, Cursor start)
      : options_(options), start_(start), end_(end_from(start.sample)) {
    if (options_.shuffle && options_.size > 0) {
      order_ = order_of_epoch(options_.size, options_.seed, start_.epoch);
    }
  }

  std::int64_t epoch() const { return start_.epoch; }

  /// The last one may not reach every rank.
  std::int64_t rounds() const { return rounds_of(0); }
  std::int64_t local_size() const { return rounds_of(options_.rank); }

  Cursor position_after(std::int64_t rounds) const {
    if (rounds >= this->rounds()) return {start_.epoch + 1, 0};
    return {start_.epoch, start_.sample + rounds * options_.world};
  }

  /// What this rank gets in the rounds from `begin` to before `end`.
  std::vector<std::size_t> samples(std::int64_t begin, std::int64_t end) const {
    std::vector<std::size_t> samples;
    end = std::min(end, local_size());
    if (begin < end) samples.reserve(static_cast<std::size_t>(end - begin));
    for (std::int64_t round = begin; round < end; ++round) {
      samples.push_back(sample_at(start_.sample + round * options_.world + options_.rank));
    }
    return samples;
  }

 private:
  std::int64_t end_from(std::int64_t begin) const {
    const std::int64_t past_whole_rounds = (options_.size - begin) % options_.world;
    if (past_whole_rounds == 0 || options_.remainder == Remainder::kUneven) return options_.size;
    const std::int64_t whole_rounds_end = options_.size - past_whole_rounds;
    const bool drop = options_.remainder == Remainder::kDrop;
    return drop ? whole_rounds_end : whole_rounds_end + options_.world;
  }

  std::int64_t rounds_of(int rank) const {
    const std::int64_t places = end_ - start_.sample - rank;
    return places <= 0 ? 0 : (places - 1) / options_.world + 1;
  }

  std::size_t sample_at(std::int64_t place) const {
    const std::int64_t wrapped = place % options_.size;
    return static_cast<std::size_t>(order_ ? (*order_)(wrapped) : wrapped);
  }

  DistributedSamplerOptions options_;
  Cursor start_;
  std::int64_t end_;
  std::optional<Permutation> order_;
};

std::int64_t read_integer(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt()) {
    reject(fmt::format("the archive holds no integer \"{}\"", key));
  }
  return value.toInt();
}

template <typename T>
void require_same(const char* field, T saved, T own) {
  if (saved == own) return;
  reject(fmt::format("the saved position is one of {0} {1}, this sampler's {0} is {2}", field,
                     saved, own));
}

}  // namespace

struct DistributedSampler::State {
  DistributedSamplerOptions options;
  std::optional<Cursor> start;  ///< of the next pass where it was chosen; always set without a pass
  std::optional<Pass> pass;     ///< the latest
  std::int64_t rounds_given = 0;  ///< of it

  bool under_way() const { return pass && rounds_given < pass->rounds(); }

  Cursor next_start() const {
    if (start) return *start;
    return under_way() ? Cursor{pass->epoch(), 0} : pass->position_after(rounds_given);
  }

  Pass pass_from(Cursor from) const {
    validate(from, options.size);
    return {options, from};
  }
};

DistributedSampler::DistributedSampler(DistributedSamplerOptions options, Cursor start)
    : state_(std::make_shared<State>()) {
  validate(options);
  state_->options = options;
  seek(start);
}

const DistributedSamplerOptions& DistributedSampler::options() const { return state_->options; }

void DistributedSampler::set_epoch(std::int64_t epoch) {
  validate({epoch, 0}, state_->options.size);
  if (!state_->start || state_->start->epoch != epoch) state_->start = Cursor{epoch, 0};
}

void DistributedSampler::seek(Cursor position) {
  validate(position, state_->options.size);
  state_->start = position;
  state_->pass.reset();
}

Cursor DistributedSampler::position() const {
  if (state_->under_way()) return state_->pass->position_after(state_->rounds_given);
  return state_->next_start();
}

Cursor DistributedSampler::position_after(std::int64_t samples_per_rank) const {
  if (samples_per_rank < 0) {
    reject(fmt::format("samples_per_rank must be at least 0, not {}", samples_per_rank));
  }
  const Pass pass = state_->pass ? *state_->pass : state_->pass_from(*state_->start);
  return pass.position_after(samples_per_rank);
}

std::vector<std::size_t> DistributedSampler::indices(Cursor from) const {
  const Pass pass = state_->pass_from(from);
  return pass.samples(0, pass.rounds());
}

std::int64_t DistributedSampler::local_size(Cursor from) const {
  return state_->pass_from(from).local_size();
}

std::int64_t DistributedSampler::rounds(Cursor from) const {
  return state_->pass_from(from).rounds();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  DistributedSamplerOptions options = state_->options;
  if (new_size) options.size = static_cast<std::int64_t>(*new_size);
  validate(options);
  const Cursor start = state_->next_start();
  if (start.sample > 0 && options.size != state_->options.size) {
    reject(fmt::format("size cannot change from {} to {} before sample {} of epoch {}",
                       state_->options.size, options.size, start.sample, start.epoch));
  }
  state_->options = options;
  state_->pass.emplace(options, start);
  state_->rounds_given = 0;
  state_->start.reset();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (batch_size == 0) reject("batch_size must be at least 1, not 0");
  if (!state_->pass) reset();
  const std::int64_t begin = state_->rounds_given;
  const auto left = static_cast<std::size_t>(state_->pass->rounds() - begin);
  state_->rounds_given += static_cast<std::int64_t>(std::min(batch_size, left));
  auto samples = state_->pass->samples(begin, state_->rounds_given);
  if (samples.empty()) return std::nullopt;
  return samples;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  save(archive, position());
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive, Cursor position) const {
  const DistributedSamplerOptions& options = state_->options;
  validate(position, options.size);
  archive.write("epoch", c10::IValue(position.epoch));
  archive.write("sample", c10::IValue(position.sample));
  archive.write("size", c10::IValue(options.size));
  archive.write("seed", c10::IValue(static_cast<std::int64_t>(options.seed)));
  archive.write("shuffle", c10::IValue(std::int64_t{options.shuffle}));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const DistributedSamplerOptions& options = state_->options;
  require_same("size", read_integer(archive, "size"), options.size);
  require_same("shuffle", read_integer(archive, "shuffle"), std::int64_t{options.shuffle});
  if (options.shuffle) {
    require_same("seed", static_cast<std::uint64_t>(read_integer(archive, "seed")), options.seed);
  }
  seek({read_integer(archive, "epoch"), read_integer(archive, "sample")});
}

}  // namespace fullshard::data
