#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace fullshard::base {

/// What went wrong, for programs; the message is for people.
enum class ErrorCode {
  kInvalidArgument,  ///< a value the caller passed cannot be used
  kConfiguration,    ///< a configuration file, flag or environment variable is wrong
  kUsage,            ///< a command line that cannot be understood (exit code 2)
  kMisuse,           ///< calls in an order or on an object that the contract forbids
  kTimeout,          ///< a wait passed its deadline; the message names who is missing
  kPeerLost,         ///< another rank died or left with an error
  kMismatch,         ///< ranks called different operations where the same was required
  kFile,             ///< a file or folder could not be read or written
  kSystem,           ///< the operating system refused something
  kInternal,         ///< a broken invariant: a fault of fullshard itself
};

/// Short stable name of a code, for instance "timeout".
std::string_view to_string(ErrorCode code);

/// Base of every error that fullshard raises for something that can happen.
/// `rank` is the rank on which the cause arose, -1 when unknown or not a matter of ranks.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int rank = -1)
      : std::runtime_error(message), code_(code), rank_(rank) {}

  ErrorCode code() const { return code_; }
  int rank() const { return rank_; }

 private:
  ErrorCode code_;
  int rank_;
};

/// The process exit code that an error stands for: 2 for usage and configuration, 1 for all others.
int exit_code(const Error& error);

/// Throws kInternal naming the broken invariant; use through FULLSHARD_CHECK.
[[noreturn]] void fail_check(const char* file, int line, const std::string& message);

}  // namespace fullshard::base
