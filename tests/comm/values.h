#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "comm/half.h"
#include "fullshard/base/dtype.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm::testing {

/// Elements of any type, written and read as doubles. Values up to 256 in magnitude are exact in
/// all types but the unsigned and boolean ones.
class Values {
 public:
  Values(base::DType dtype, std::int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(static_cast<std::size_t>(count) * base::size_of(dtype)) {}

  std::int64_t count() const { return count_; }
  base::DType dtype() const { return dtype_; }
  void* data() { return bytes_.empty() ? nullptr : bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  Buffer buffer() { return {data(), count_, dtype_}; }
  ConstBuffer input() { return buffer(); }

  /// Elements [offset, offset + count) as a buffer of their own.
  Buffer part(std::int64_t offset, std::int64_t count) {
    void* at = count == 0
                   ? nullptr
                   : bytes_.data() + static_cast<std::size_t>(offset) * base::size_of(dtype_);
    return {at, count, dtype_};
  }

  double get(std::int64_t i) const {
    switch (dtype_) {
      case base::DType::kFloat32: return read<float>(i);
      case base::DType::kFloat64: return read<double>(i);
      case base::DType::kBFloat16: return widen(read<BFloat16>(i));
      case base::DType::kFloat16: return widen(read<Float16>(i));
      case base::DType::kInt8: return read<std::int8_t>(i);
      case base::DType::kUInt8:
      case base::DType::kBool: return read<std::uint8_t>(i);
      case base::DType::kInt16: return read<std::int16_t>(i);
      case base::DType::kInt32: return read<std::int32_t>(i);
      case base::DType::kInt64: return static_cast<double>(read<std::int64_t>(i));
    }
    return 0;
  }

  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case base::DType::kFloat32: return write(i, static_cast<float>(value));
      case base::DType::kFloat64: return write(i, value);
      case base::DType::kBFloat16: return write_half<BFloat16>(i, value);
      case base::DType::kFloat16: return write_half<Float16>(i, value);
      case base::DType::kInt8: return write(i, static_cast<std::int8_t>(value));
      case base::DType::kUInt8:
      case base::DType::kBool: return write(i, static_cast<std::uint8_t>(value));
      case base::DType::kInt16: return write(i, static_cast<std::int16_t>(value));
      case base::DType::kInt32: return write(i, static_cast<std::int32_t>(value));
      case base::DType::kInt64: return write(i, static_cast<std::int64_t>(value));
    }
  }

 private:
  template <typename T>
  T read(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void write(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  void write_half(std::int64_t i, double value) {
    T half;
    narrow(static_cast<float>(value), half);
    write(i, half);
  }

  base::DType dtype_;
  std::int64_t count_;
  std::vector<std::byte> bytes_;
};

inline const std::vector<base::DType>& all_dtypes() {
  using base::DType;
  static const std::vector<DType> all = {
      DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kInt8,
      DType::kUInt8,   DType::kInt16,   DType::kInt32,    DType::kInt64,   DType::kBool};
  return all;
}

/// What rank r puts at element i: small integers that differ by rank and element, or 0 and 1 for
/// bool.
inline double input_value(base::DType dtype, int rank, std::int64_t i) {
  if (dtype == base::DType::kBool) return static_cast<double>((i + rank) % 3 == 0);
  return static_cast<double>((i * 7 + rank * 3) % 11);
}

inline Values make_input(base::DType dtype, int rank, std::int64_t count, std::int64_t first = 0) {
  Values values(dtype, count);
  for (std::int64_t i = 0; i < count; ++i) values.set(i, input_value(dtype, rank, first + i));
  return values;
}

}  // namespace fullshard::comm::testing
