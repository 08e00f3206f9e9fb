#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fullshard/base/error.h"

namespace fullshard::comm::testing {

/// Runs `call`, expects it to throw base::Error of this code, and returns the error (or one of
/// kInternal after a failed expectation).
inline base::Error expect_error(base::ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(base::to_string(error.code()), base::to_string(code)) << error.what();
    return error;
  }
  ADD_FAILURE() << "did not fail; expected " << base::to_string(code);
  return {base::ErrorCode::kInternal, ""};
}

}  // namespace fullshard::comm::testing
