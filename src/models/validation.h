#pragma once

#include <cstdint>
#include <string>

namespace fullshard::models {

/// Throws kInvalidArgument.
[[noreturn]] void reject(const std::string& message);

/// What is wrong with one field of the options of `model`, as "ViT options: ...".
void require_positive(const char* model, const char* field, std::int64_t value);
void require_eps(const char* model, double norm_eps);
void require_heads(const char* model, std::int64_t n_heads, std::int64_t dim);

}  // namespace fullshard::models
