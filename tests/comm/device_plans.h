#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "comm/device/plan.h"

namespace fullshard::comm::testing {

using Counts = std::vector<std::int64_t>;
using Numbers = std::vector<std::int64_t>;

inline shared::Parts parts_of(const Counts& counts) {
  return shared::cut(counts, static_cast<int>(counts.size()), "a test");
}

/// `first`, `first` + 1 and so on.
inline Numbers numbers(std::int64_t count, std::int64_t first) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

/// Those of `pieces` that go to or come from `peer`.
inline std::vector<device::Piece> pieces_of(const std::vector<device::Piece>& pieces,
                                            std::size_t peer) {
  std::vector<device::Piece> found;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(found),
               [&](const auto& piece) { return piece.peer == static_cast<int>(peer); });
  return found;
}

/// Does what the backend does with every rank's exchange, all buffers being vectors: between two
/// ranks messages are matched in their order.
inline void deliver(const std::vector<device::Exchange>& exchanges,
                    const std::vector<Numbers>& from, std::vector<Numbers>& to) {
  for (std::size_t sender = 0; sender < exchanges.size(); ++sender) {
    for (std::size_t receiver = 0; receiver < exchanges.size(); ++receiver) {
      const auto sends = pieces_of(exchanges[sender].sends, receiver);
      const auto recvs = pieces_of(exchanges[receiver].recvs, sender);
      ASSERT_EQ(sends.size(), recvs.size()) << sender << " -> " << receiver;
      for (std::size_t i = 0; i < sends.size(); ++i) {
        ASSERT_EQ(sends[i].count, recvs[i].count) << sender << " -> " << receiver;
        ASSERT_GT(sends[i].count, 0);
        ASSERT_LE(sends[i].offset + sends[i].count, std::ssize(from[sender]));
        ASSERT_LE(recvs[i].offset + recvs[i].count, std::ssize(to[receiver]));
        std::copy_n(from[sender].begin() + sends[i].offset, sends[i].count,
                    to[receiver].begin() + recvs[i].offset);
      }
    }
  }
}

}  // namespace fullshard::comm::testing
