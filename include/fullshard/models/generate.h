#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "fullshard/models/gpt.h"

namespace fullshard::models {

/// The `count` tokens, [count] int64, that the model puts after `prompt`, [length >= 1] int64.
/// temperature 0 takes the likeliest token each time; above 0 samples from
/// softmax(logits / temperature) with `generator` (torch's default one when absent).
/// The model sees at most its last seq_len tokens and recomputes them for every token.
/// Of a sharded model all ranks must call it, with equal prompts and generators in equal states.
at::Tensor generate(Gpt& model, const at::Tensor& prompt, std::int64_t count, double temperature,
                    std::optional<at::Generator> generator = std::nullopt);

}  // namespace fullshard::models
