#include "models/validation.h"

#include <fmt/format.h>

#include "fullshard/base/error.h"

namespace fullshard::models {

void reject(const std::string& message) {
  throw base::Error(base::ErrorCode::kInvalidArgument, message);
}

void require_positive(const char* model, const char* field, std::int64_t value) {
  if (value >= 1) return;
  reject(fmt::format("{} options: {} must be at least 1, not {}", model, field, value));
}

void require_eps(const char* model, double norm_eps) {
  if (norm_eps > 0) return;
  reject(fmt::format("{} options: norm_eps must be above 0, not {}", model, norm_eps));
}

void require_heads(const char* model, std::int64_t n_heads, std::int64_t dim) {
  require_positive(model, "n_heads", n_heads);
  require_positive(model, "dim", dim);
  if (dim % n_heads == 0) return;
  reject(fmt::format("{} options: n_heads {} must divide dim {}", model, n_heads, dim));
}

}  // namespace fullshard::models
