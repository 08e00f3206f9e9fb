#include "trainer/generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "fullshard/data/token_source.h"
#include "fullshard/data/utf8.h"
#include "fullshard/models/generate.h"
#include "trainer/rank_notes.h"

namespace fullshard::trainer {
namespace {

constexpr std::int64_t kPiece = 16;  // bytes between looks at the stop signal
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_control(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return (code < 0x20 && byte != '\n' && byte != '\t') || code == 0x7F;
}

}  // namespace

Generated generate_text(models::Gpt& model, const config::TrainConfig& config, comm::Group& group,
                        const std::function<int()>& stop_signal) {
  const config::GenerationConfig& wanted = config.generation;
  const at::Generator generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(config.training.seed));
  at::Tensor context = data::encode_bytes(wanted.prompt.empty() ? "\n" : wanted.prompt);
  Generated result;
  while (static_cast<std::int64_t>(result.text.size()) < wanted.bytes && result.stop_signal == 0) {
    const std::int64_t count = std::min<std::int64_t>(
        kPiece, wanted.bytes - static_cast<std::int64_t>(result.text.size()));
    const at::Tensor piece = models::generate(model, context, count, wanted.temperature, generator);
    context = at::cat({context, piece});
    result.text += data::decode_bytes(piece);
    result.stop_signal = agree_on_stop(group, stop_signal ? stop_signal() : 0);
  }
  return result;
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t valid = data::first_invalid_utf8(text).value_or(text.size());
    for (const char byte : text.substr(0, valid)) {
      if (is_control(byte)) {
        result += kReplacement;
      } else {
        result += byte;
      }
    }
    if (valid < text.size()) result += kReplacement;
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
  return result;
}

}  // namespace fullshard::trainer
