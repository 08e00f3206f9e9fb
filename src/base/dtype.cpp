#include "fullshard/base/dtype.h"

#include <array>

namespace fullshard::base {
namespace {

struct Row {
  std::size_t bytes;
  std::string_view name;
};

constexpr std::array<Row, 10> kRows = {{{4, "float32"},
                                        {8, "float64"},
                                        {2, "bfloat16"},
                                        {2, "float16"},
                                        {1, "int8"},
                                        {1, "uint8"},
                                        {2, "int16"},
                                        {4, "int32"},
                                        {8, "int64"},
                                        {1, "bool"}}};

}  // namespace

std::size_t size_of(DType dtype) { return kRows.at(static_cast<std::size_t>(dtype)).bytes; }

std::string_view to_string(DType dtype) { return kRows.at(static_cast<std::size_t>(dtype)).name; }

}  // namespace fullshard::base
