#include "models/attend.h"

#include <torch/torch.h>

#include <optional>

namespace fullshard::models {
namespace {

/// [batch, heads, seq, width] -> [batch, seq, heads * width]
at::Tensor side_by_side(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

}  // namespace

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  std::int64_t heads, const at::Tensor& mask) {
  const auto by_head = [heads](const at::Tensor& x) {
    return x.unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
  };
  std::optional<at::Tensor> seen;
  if (mask.defined()) seen = mask;
  return side_by_side(
      at::scaled_dot_product_attention(by_head(query), by_head(key), by_head(value), seen));
}

at::Tensor attend_fused(const at::Tensor& qkv, std::int64_t heads, bool causal) {
  const std::int64_t width = qkv.size(2) / 3 / heads;
  // [3, batch, heads, seq, width]
  const auto split =
      qkv.view({qkv.size(0), qkv.size(1), 3, heads, width}).permute({2, 0, 3, 1, 4}).unbind(0);
  return side_by_side(at::scaled_dot_product_attention(
      split[0], split[1], split[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, causal));
}

}  // namespace fullshard::models
