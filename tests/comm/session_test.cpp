// What a rank finds in a control block that other ranks have left in disorder.

#include "comm/shared/session.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/local/local_fabric.h"
#include "comm/shared/shared_group.h"

namespace fullshard::comm::testing {
namespace {

using shared::Session;

/// Memory of this process, and rank 1 has died.
class Mortuary final : public shared::Fabric {
 public:
  std::shared_ptr<SharedSegment> create(std::size_t bytes, std::string_view purpose) override {
    return memory_.create(bytes, purpose);
  }
  shared::Ticket offer(const std::shared_ptr<SharedSegment>& segment,
                       std::span<const int> receivers) override {
    return memory_.offer(segment, receivers);
  }
  std::shared_ptr<SharedSegment> take(shared::Ticket ticket, std::size_t bytes,
                                      std::string_view purpose) override {
    return memory_.take(ticket, bytes, purpose);
  }
  std::optional<std::string> death_of(int rank) override {
    return rank == 1 ? std::optional<std::string>("its process has ended") : std::nullopt;
  }
  bool has_processes() const override { return true; }
  int stopped_rank() override { return -1; }

 private:
  local::LocalFabric memory_;
};

TEST(Session, FindsADeathInTheMiddleOfWritingAFailure) {
  const auto fabric = std::make_shared<Mortuary>();
  const CommOptions options;
  Session session(shared::make_control_block(*fabric, 2, options), 0,
                  trace::GroupTrace::of_world(0, 2, options), fabric, options);
  session.block().header().failure.state = 1;  // taken, and nothing in it yet
  const auto failure = session.find_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), base::ErrorCode::kPeerLost);
  EXPECT_EQ(failure->rank(), 1) << failure->what();
}

}  // namespace
}  // namespace fullshard::comm::testing
