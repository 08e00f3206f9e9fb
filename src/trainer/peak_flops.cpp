#include "trainer/peak_flops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>

#include "fullshard/base/deadline.h"

namespace fullshard::trainer {
namespace {

constexpr std::int64_t kSide = 512;  // large enough for full speed, small enough for the cache
constexpr base::Duration kTime = std::chrono::milliseconds(50);

/// The best of the products that fit into the time; the first one warms up.
double best_product_seconds(base::DType dtype) {
  const at::NoGradGuard no_grad;
  const auto options = at::dtype(dtype == base::DType::kFloat64 ? at::kDouble : at::kFloat);
  const at::Tensor factor = at::full({kSide, kSide}, 0.5, options);
  at::mm(factor, factor);
  double best = 1e9;
  const auto deadline = base::Deadline::after(kTime);
  do {
    const auto start = base::Clock::now();
    at::mm(factor, factor);
    best = std::min(best, base::seconds(base::Clock::now() - start));
  } while (!deadline.passed());
  return best;
}

}  // namespace

double measure_peak_flops(comm::Group& group, base::DType dtype) {
  group.barrier({"peak measurement", -1});
  constexpr double kFlops = 2.0 * kSide * kSide * kSide;
  double flops = kFlops / best_product_seconds(dtype);
  group
      .all_reduce({&flops, 1, base::DType::kFloat64}, comm::ReduceOp::kSum,
                  {"peak measurement", -1})
      .wait();
  return flops;
}

}  // namespace fullshard::trainer
