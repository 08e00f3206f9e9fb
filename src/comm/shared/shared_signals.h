#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/shared/counters.h"
#include "comm/shared/session.h"
#include "fullshard/comm/group.h"

namespace fullshard::comm::shared {

/// A signal board in shared memory; waits and wakes through the group's session, which it keeps.
class SharedSignals final : public SignalBoard {
 public:
  static std::size_t bytes_for(int ranks, std::size_t counters);

  /// `memory` is zeroed, of bytes_for() bytes, and the same for all ranks of the session.
  SharedSignals(std::shared_ptr<Session> session, std::unique_ptr<SharedSegment> memory,
                std::size_t counters, std::string_view purpose,
                std::unique_ptr<trace::BoardTrace> trace);

  void post(std::size_t index, std::uint64_t value, std::string_view operation,
            const OpTag& tag) override;
  std::uint64_t value(int rank, std::size_t index) const override;
  bool reached(std::size_t index, std::uint64_t value) const override;
  void wait(std::size_t index, std::uint64_t value, std::string_view operation,
            const OpTag& tag) override;

 private:
  void check_index(std::size_t index) const;

  std::shared_ptr<Session> session_;
  std::unique_ptr<SharedSegment> memory_;
  Counters counters_;
  std::size_t count_;
  std::string purpose_;
  std::unique_ptr<trace::BoardTrace> trace_;
};

}  // namespace fullshard::comm::shared
