#include "fullshard/base/error.h"

#include <fmt/format.h>

namespace fullshard::base {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kConfiguration: return "configuration";
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kMisuse: return "misuse";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kPeerLost: return "peer lost";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kFile: return "file";
    case ErrorCode::kSystem: return "system";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

int exit_code(const Error& error) {
  const bool user = error.code() == ErrorCode::kUsage || error.code() == ErrorCode::kConfiguration;
  return user ? 2 : 1;
}

void fail_check(const char* file, int line, const std::string& message) {
  throw Error(ErrorCode::kInternal,
              fmt::format("{}:{}: broken invariant: {}", file, line, message));
}

}  // namespace fullshard::base
