#include "fullshard/models/generate.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "fullshard/base/error.h"

namespace fullshard::models {
namespace {

void validate_request(const at::Tensor& prompt, std::int64_t count, double temperature) {
  const auto reject = [](const std::string& message) {
    throw base::Error(base::ErrorCode::kInvalidArgument, message);
  };
  if (prompt.dim() != 1 || prompt.numel() < 1) {
    reject("generate needs a one-dimensional prompt of at least one token");
  }
  if (count < 0) reject(fmt::format("generate cannot make {} tokens", count));
  if (!(temperature >= 0)) {
    reject(fmt::format("temperature must be 0 or above, not {}", temperature));
  }
}

at::Tensor choose(const at::Tensor& logits, double temperature,
                  const std::optional<at::Generator>& generator) {
  if (temperature == 0) return logits.argmax(-1, /*keepdim=*/true);
  return at::multinomial(at::softmax(logits / temperature, -1), 1, /*replacement=*/true, generator);
}

}  // namespace

at::Tensor generate(Gpt& model, const at::Tensor& prompt, std::int64_t count, double temperature,
                    std::optional<at::Generator> generator) {
  validate_request(prompt, count, temperature);
  const torch::NoGradGuard no_grad;
  const std::int64_t length = prompt.numel();
  const at::Tensor tokens = at::empty({length + count}, prompt.options());
  tokens.narrow(0, 0, length).copy_(prompt);
  for (std::int64_t end = length; end < length + count; ++end) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - model->options().seq_len);
    const at::Tensor context = tokens.slice(0, begin, end).unsqueeze(0);
    at::Tensor logits = model->forward(context).select(0, 0).select(0, -1);
    if (c10::isReducedFloatingType(logits.scalar_type())) logits = logits.to(at::kFloat);
    tokens.narrow(0, end, 1).copy_(choose(logits, temperature, generator));
  }
  return tokens.narrow(0, length, count);
}

}  // namespace fullshard::models
