#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "fullshard/schedule/follower.h"
#include "schedule/steps.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fullshard::schedule {
namespace {

TEST(FollowerAllocation, AFollowedStepAllocatesNothing) {
  const std::vector<std::int64_t> bytes(13, 100);
  Follower follower(
      bytes, {.max_unsharded_bytes = 400, .forward_prefetch = 2, .gather_bucket_bytes = 200});
  const Trace trace = steps::gpt(12);
  const auto run = [&] {
    long evicted = 0;
    for (const Touch& touch : trace.events()) {
      for (int operators = 0; operators < 5; ++operators) {
        evicted += static_cast<long>(follower.on_touch(touch.unit, touch.phase).evict.size());
      }
    }
    return evicted + static_cast<long>(follower.end_step().size());
  };
  const long before_tracing = allocations;
  run();
  EXPECT_GT(allocations, before_tracing);  // the counter counts

  const long before_following = allocations;
  const long evicted = run();
  EXPECT_EQ(allocations, before_following);
  EXPECT_GT(evicted, 0);
  EXPECT_EQ(follower.deviations(), 0);
}

}  // namespace
}  // namespace fullshard::schedule
