#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::comm::shared {

/// A group that can tell whether the processes of its ranks run, whatever they are doing.
class Pulse {
 public:
  virtual ~Pulse() = default;

  /// Shows the others that this process runs, or asks them to show it. To be called again and again
  /// by one thread. Never blocks.
  virtual void beat() noexcept = 0;

  /// Tells the others that no more signs will come from here, though this rank has not left: what
  /// it made of the group may live on.
  virtual void rest() noexcept = 0;

  /// How often a rank has shown that it runs.
  struct Beats {
    int rank = -1;  ///< as the world numbers it
    std::uint64_t count = 0;
  };

  /// Of the ranks that this one watches: those, or some of those, that take part and have not left.
  /// None where ranks run and stop together, as threads that share memory do.
  virtual std::vector<Beats> beats() = 0;

  /// Why the group can no longer be used, if so. Looks whether a rank has died meanwhile.
  virtual std::optional<base::Error> find_failure() = 0;

  /// What is known of a rank that shows nothing any more, in words that follow "for 30 s: ".
  virtual std::string account_of(int world_rank) = 0;
};

}  // namespace fullshard::comm::shared
