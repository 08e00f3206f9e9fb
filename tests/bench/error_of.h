#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "fullshard/base/error.h"

namespace fullshard::bench {

/// The error that `call` must throw.
inline base::Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {base::ErrorCode::kInternal, ""};
}

}  // namespace fullshard::bench
