#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fullshard::models {

/// Scaled dot-product attention by head; the heads lie side by side in the last dimension of
/// `query`, `key`, `value` and of the result, all [batch, seq, dim]. `mask`, broadcast to [batch,
/// heads, seq, seq], is true where a key may be seen; undefined: everywhere.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  std::int64_t heads, const at::Tensor& mask);

/// The same over what one projection made, queries, keys and values behind one another: [batch,
/// seq, 3 * dim] -> [batch, seq, dim]. `causal`: a key is seen only from its place on.
at::Tensor attend_fused(const at::Tensor& qkv, std::int64_t heads, bool causal);

}  // namespace fullshard::models
