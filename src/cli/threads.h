#pragma once

namespace fullshard::cli {

/// OMP_NUM_THREADS when it is set to a number, else 0.
int threads_from_environment();

}  // namespace fullshard::cli
