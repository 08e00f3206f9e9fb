#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/base/error.h"
#include "fuzz/training_run.h"

// Random models, trained sharded in random ways, against the same training unsharded.
//
//   FULLSHARD_FUZZ_CASES=5000 ./fuzz_test                            a longer run
//   FULLSHARD_FUZZ_SEED=1234 FULLSHARD_FUZZ_CASES=1 ./fuzz_test      one case again

namespace fullshard::fuzz {
namespace {

constexpr std::int64_t kBlock = 50;  // seeds a test

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::stoll(value);
}

struct Seeds {
  std::int64_t first = from_environment("FULLSHARD_FUZZ_SEED", 1);
  std::int64_t count = from_environment("FULLSHARD_FUZZ_CASES", 1000);
};

const Seeds& seeds() {
  static const Seeds read_once;
  return read_once;
}

// A limit may be too small for what stays for good, or for the units of one operator. That is an
// error which says so; then a larger one has to do.
std::vector<Outcome> train_within_limit(Case run) {
  for (;;) {
    try {
      return train_sharded(run);
    } catch (const base::Error& error) {
      const bool is_limit =
          std::string_view(error.what()).find("max_unsharded_bytes") != std::string_view::npos;
      if (run.limit == 0 || !is_limit) throw;
      run.limit *= 2;
    }
  }
}

std::string failure_of(const Case& run) {
  try {
    const Outcome expected = train_unsharded(run);
    std::string text;
    const auto outcomes = train_within_limit(run);
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const std::string off = difference(run, outcomes[rank], expected);
      if (!off.empty()) text += "rank " + std::to_string(rank) + ":\n" + off;
    }
    return text;
  } catch (const std::exception& error) {
    return error.what();
  }
}

class Fuzz : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(Fuzz, RandomTrainingEqualsUnsharded) {
  const std::int64_t first = seeds().first + GetParam() * kBlock;
  const std::int64_t end = std::min(first + kBlock, seeds().first + seeds().count);
  for (std::int64_t seed = first; seed < end; ++seed) {
    const Case run = random_case(static_cast<std::uint64_t>(seed));
    const std::string failure = failure_of(run);
    EXPECT_TRUE(failure.empty()) << "FULLSHARD_FUZZ_SEED=" << seed << " FULLSHARD_FUZZ_CASES=1\n"
                                 << to_string(run) << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz,
                         ::testing::Range(std::int64_t{0}, (seeds().count + kBlock - 1) / kBlock));

}  // namespace
}  // namespace fullshard::fuzz
