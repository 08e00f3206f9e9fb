#pragma once

#include "fullshard/base/dtype.h"
#include "fullshard/comm/group.h"

namespace fullshard::trainer {

/// FLOP/s that all ranks reach together in a matrix product of `dtype`, measured now on every rank
/// at once for about 50 ms: what "mfu" is a fraction of. A machine of which other work takes a part
/// shows a lower figure. Collective; the same value on every rank.
double measure_peak_flops(comm::Group& group, base::DType dtype);

}  // namespace fullshard::trainer
