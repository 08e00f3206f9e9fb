#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fullshard/base/deadline.h"

namespace fullshard::launcher {

/// Why one rank failed.
struct Failure {
  int rank;
  base::Clock::time_point time;  ///< when it failed, as far as it can be known
  std::string what;              ///< what the rank did: "failed: bad sample 17"
  bool consequence = false;      ///< it ended only because another rank had
  bool usage = false;            ///< what the user asked for cannot be done
};

/// A rank's own words, as base::report_error writes them; nothing when it is not such a line.
std::optional<Failure> parse_report(int rank, std::string_view line);

/// The failure that a wait status stands for; nothing for exit code 0.
std::optional<Failure> failure_of_status(int rank, int wait_status);

/// First the cause: what failed by itself before what only followed, each in the order of time.
void order_by_cause(std::vector<Failure>& failures);

/// One line a failure, for people; `failures` ordered by cause, `start` when the job began.
std::string summary(const std::vector<Failure>& failures, base::Clock::time_point start);

}  // namespace fullshard::launcher
