#pragma once

#include "fullshard/base/deadline.h"

namespace fullshard::shard {

/// Adds the seconds of its own life to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(base::Clock::now()) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { total_ += base::seconds(base::Clock::now() - start_); }

 private:
  double& total_;
  base::Clock::time_point start_;
};

}  // namespace fullshard::shard
