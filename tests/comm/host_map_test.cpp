#include "comm/host_map.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fullshard::comm {
namespace {

// Every arrangement of up to 6 ranks on up to 4 hosts.
template <typename Check>
void for_all_arrangements(const Check& check) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    int arrangements = 1;
    for (int i = 0; i < ranks; ++i) arrangements *= 4;
    for (int number = 0; number < arrangements; ++number) {
      std::vector<int> host_of;
      for (int digits = number, i = 0; i < ranks; ++i, digits /= 4) host_of.push_back(digits % 4);
      check(host_of, HostMap(host_of));
    }
  }
}

TEST(HostMap, KnowsWhoIsWhere) {
  const HostMap map({7, 3, 7, 7, 3});
  EXPECT_EQ(map.hosts(), 2);
  EXPECT_EQ(map.ranks(0), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(map.ranks(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(map.host_of(4), 1);
  EXPECT_EQ(map.local(3), 2);
  EXPECT_EQ(map.runs().size(), 4U);
  EXPECT_TRUE(map.any_together());
  EXPECT_FALSE(HostMap({1, 2, 3}).any_together());
}

// What the collectives rely on: on each host every rank's part has one carrier, and in each run the
// ranks of the host, in their order, carry parts that lie one after the other.
TEST(HostMap, EveryPartHasOneCarrierOnEveryHost) {
  for_all_arrangements([](const std::vector<int>& host_of, const HostMap& map) {
    for (int host = 0; host < map.hosts(); ++host) {
      for (std::size_t run = 0; run < map.runs().size(); ++run) {
        int next = map.runs()[run].first;
        for (const int rank : map.ranks(host)) {
          const HostMap::Span span = map.carried(run, rank);
          if (span.first == span.end) continue;
          ASSERT_EQ(span.first, next);
          next = span.end;
          for (int part = span.first; part < span.end; ++part) {
            ASSERT_EQ(map.carrier(part, host), rank);
          }
        }
        ASSERT_EQ(next, map.runs()[run].end);
      }
    }
    for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
      ASSERT_EQ(map.carrier(rank, map.host_of(rank)), rank);
    }
  });
}

TEST(HostMap, TheRanksOfAHostShareTheWork) {
  const HostMap map({0, 0, 0, 0, 1, 1});
  EXPECT_EQ(map.carrier(0, 1), 4);
  EXPECT_EQ(map.carrier(1, 1), 4);
  EXPECT_EQ(map.carrier(2, 1), 5);
  EXPECT_EQ(map.carrier(3, 1), 5);
  EXPECT_NE(map.carrier(4, 0), map.carrier(5, 0));
}

}  // namespace
}  // namespace fullshard::comm
