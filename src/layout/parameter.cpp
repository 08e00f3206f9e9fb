#include "fullshard/layout/parameter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fullshard/base/error.h"

namespace fullshard::layout {

using base::Error;
using base::ErrorCode;

std::int64_t numel(const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto negative = std::find_if(shape.begin(), shape.end(), [](auto n) { return n < 0; });
  if (negative != shape.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("parameter '{}' has shape ({}): an extent cannot be negative", name,
                            fmt::join(shape, ", ")));
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("parameter '{}' has shape ({}): more elements than 63 bits can count",
                              name, fmt::join(shape, ", ")));
    }
  }
  return product;
}

}  // namespace fullshard::layout
