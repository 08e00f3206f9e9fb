#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "fullshard/base/error.h"
#include "fullshard/data/token_source.h"

namespace fullshard::data {

/// Tokens 0, 1, 2, ...: a sample's first token tells where it begins.
class CountingTokens : public TokenSource {
 public:
  explicit CountingTokens(std::int64_t size) : size_(size) {}

  std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    std::iota(out.begin(), out.end(), begin);
  }

 private:
  std::int64_t size_;
};

/// First tokens of a batch's rows, as window numbers.
inline std::vector<std::int64_t> windows_in(const at::Tensor& tokens, std::int64_t seq_len) {
  std::vector<std::int64_t> windows;
  for (std::int64_t row = 0; row < tokens.size(0); ++row) {
    windows.push_back(tokens[row][0].item<std::int64_t>() / seq_len);
  }
  return windows;
}

inline std::string error_of(base::ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

}  // namespace fullshard::data
