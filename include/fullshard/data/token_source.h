#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fullshard/data/corpus.h"

namespace fullshard::data {

/// A finite run of tokens. All functions may be called from several threads at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual std::int64_t size() const = 0;

  /// Copies the out.size() tokens from `begin` on, which lie inside the source.
  /// May throw: the error reaches whoever asked for the batch.
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;

  /// `targets` are the tokens from `begin` on, as a model is to predict them; replaces by
  /// kIgnoredTarget those it is not to learn, such as a user's questions. Default: none.
  virtual void mask(std::int64_t begin, std::span<std::int64_t> targets) const;
};

/// A target that counts for nothing, as torch's cross-entropy has it by default.
inline constexpr std::int64_t kIgnoredTarget = -100;

inline constexpr std::int64_t kByteVocabulary = 256;

/// Every byte is a token whose id is its value.
class ByteTokens : public TokenSource {
 public:
  /// `part` is a view into `text`, which it keeps alive.
  ByteTokens(Text text, std::string_view part) : text_(std::move(text)), part_(part) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(part_.size()); }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override;

 private:
  Text text_;
  std::string_view part_;
};

/// [bytes] int64.
at::Tensor encode_bytes(std::string_view text);

/// The inverse of encode_bytes. Bytes that a model made need not be UTF-8.
/// Throws kInvalidArgument for an id outside 0..255.
std::string decode_bytes(const at::Tensor& tokens);

}  // namespace fullshard::data
