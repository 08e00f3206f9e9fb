#pragma once

#include <map>
#include <string>
#include <vector>

#include "fullshard/base/deadline.h"
#include "fullshard/bench/step_bench.h"

namespace fullshard::bench {

/// Shows what a long series of runs is doing: one line a run, with how long the rest will take once
/// each kind of run has been seen. On a terminal the line of the present run is redrawn.
class Progress {
 public:
  /// `runs`: the kind of each run, in the order in which they will come. Runs of one kind take
  /// about the same time.
  Progress(const BenchConsole& console, std::vector<std::string> runs);

  void start(const std::string& what);

  /// Often enough to be seen moving.
  void tick();

  /// The present run has ended; `outcome` is shown with it.
  void finish(const std::string& outcome);

  /// A line in between, about the present run.
  void note(const std::string& text);

  /// Ends a line that is being redrawn.
  void interrupt();

 private:
  double elapsed() const { return base::seconds(base::Clock::now() - start_); }
  std::string left() const;
  void draw(const std::string& line);

  const BenchConsole& console_;
  const std::vector<std::string> runs_;
  std::map<std::string, double> seconds_;  ///< of the latest run of each kind
  std::size_t present_ = 0;
  std::string what_;
  base::Clock::time_point start_;
  bool line_open_ = false;
};

/// "12 s", "4 min", "1 h 20 min".
std::string rough_time(double seconds);

}  // namespace fullshard::bench
