#include "fullshard/data/token_source.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::data {

void TokenSource::mask(std::int64_t, std::span<std::int64_t>) const {}

void ByteTokens::read(std::int64_t begin, std::span<std::int64_t> out) const {
  FULLSHARD_CHECK_LE(begin + static_cast<std::int64_t>(out.size()), size());
  const auto bytes = part_.substr(static_cast<std::size_t>(begin), out.size());
  std::transform(bytes.begin(), bytes.end(), out.begin(),
                 [](char c) { return static_cast<std::int64_t>(static_cast<unsigned char>(c)); });
}

at::Tensor encode_bytes(std::string_view text) {
  at::Tensor tokens = at::empty({static_cast<std::int64_t>(text.size())}, at::kLong);
  ByteTokens(nullptr, text).read(0, {tokens.mutable_data_ptr<std::int64_t>(), text.size()});
  return tokens;
}

std::string decode_bytes(const at::Tensor& tokens) {
  const at::Tensor ids = tokens.to(at::kLong).contiguous();
  std::string text;
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const std::int64_t id = ids.const_data_ptr<std::int64_t>()[i];
    if (id < 0 || id >= kByteVocabulary) {
      throw base::Error(base::ErrorCode::kInvalidArgument,
                        fmt::format("token {} is {}, but a byte is from 0 to 255", i, id));
    }
    text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
  }
  return text;
}

}  // namespace fullshard::data
