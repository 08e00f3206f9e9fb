#pragma once

#include <fmt/format.h>

#include "fullshard/base/error.h"

// Checks of fullshard's own invariants. They stay on in release builds; a failure throws
// base::Error(kInternal) with both values. Wrong user input is never reported through these.

#define FULLSHARD_CHECK(condition)                                               \
  do {                                                                           \
    if (!(condition)) {                                                          \
      ::fullshard::base::fail_check(__FILE__, __LINE__, "expected " #condition); \
    }                                                                            \
  } while (false)

#define FULLSHARD_CHECK_OP(op, a, b)                                                         \
  do {                                                                                       \
    const auto& check_a = (a);                                                               \
    const auto& check_b = (b);                                                               \
    if (!(check_a op check_b)) {                                                             \
      ::fullshard::base::fail_check(                                                         \
          __FILE__, __LINE__,                                                                \
          fmt::format("expected " #a " " #op " " #b ", found {} and {}", check_a, check_b)); \
    }                                                                                        \
  } while (false)

#define FULLSHARD_CHECK_EQ(a, b) FULLSHARD_CHECK_OP(==, a, b)
#define FULLSHARD_CHECK_LE(a, b) FULLSHARD_CHECK_OP(<=, a, b)
#define FULLSHARD_CHECK_LT(a, b) FULLSHARD_CHECK_OP(<, a, b)
