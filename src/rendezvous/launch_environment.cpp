#include "fullshard/rendezvous/launch_environment.h"

#include <fmt/format.h>

#include <charconv>
#include <climits>
#include <cstdlib>
#include <string_view>

#include "fullshard/base/error.h"

namespace fullshard::rendezvous {
namespace {

using base::Error;
using base::ErrorCode;

class Reader {
 public:
  explicit Reader(const LaunchEnvironment::Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    const char* value = lookup_(name);
    if (value == nullptr) return std::nullopt;
    return value;
  }

  // A whole number in [least, most]; `right` says what would be right.
  std::optional<int> number(const char* name, int least, int most, std::string_view right) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (error != std::errc() || end != value->data() + value->size() || number < least ||
        number > most) {
      throw Error(
          ErrorCode::kConfiguration,
          fmt::format("environment variable {} is '{}'; it should be {}", name, *value, right));
    }
    return number;
  }

 private:
  const LaunchEnvironment::Lookup& lookup_;
};

[[noreturn]] void incomplete(std::string_view set, std::string_view missing) {
  throw Error(
      ErrorCode::kConfiguration,
      fmt::format("environment variable {} is set but {} is not; a launched rank needs RANK, "
                  "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (as "
                  "torchrun and 'fullshard train' set them), a process by itself none of them",
                  set, missing));
}

void read_ranks(const Reader& reader, LaunchEnvironment& env) {
  const auto size = reader.number("WORLD_SIZE", 1, INT_MAX, "the number of ranks, from 1 up");
  const auto rank = reader.number("RANK", 0, INT_MAX, "this process's number, from 0 up");
  if (!rank && size) incomplete("WORLD_SIZE", "RANK");
  if (rank && !size) incomplete("RANK", "WORLD_SIZE");
  if (!rank) return;
  env.launched = true;
  env.rank = *rank;
  env.world_size = *size;
  if (*rank >= *size) {
    throw Error(
        ErrorCode::kConfiguration,
        fmt::format("environment variable RANK is {}, but WORLD_SIZE is {}; ranks go from 0 to {}",
                    *rank, *size, *size - 1));
  }
}

void read_local_ranks(const Reader& reader, LaunchEnvironment& env) {
  const auto size =
      reader.number("LOCAL_WORLD_SIZE", 1, INT_MAX, "the number of ranks on this host");
  const auto rank = reader.number("LOCAL_RANK", 0, INT_MAX, "this process's number on this host");
  if (rank && !env.launched) incomplete("LOCAL_RANK", "RANK");
  if (size && !env.launched) incomplete("LOCAL_WORLD_SIZE", "RANK");
  if (rank && !size) incomplete("LOCAL_RANK", "LOCAL_WORLD_SIZE");
  if (size && !rank) incomplete("LOCAL_WORLD_SIZE", "LOCAL_RANK");
  env.local_rank = rank.value_or(env.rank);
  env.local_world_size = size.value_or(env.world_size);
  if (env.local_rank >= env.local_world_size || env.local_world_size > env.world_size) {
    throw Error(
        ErrorCode::kConfiguration,
        fmt::format("environment variables LOCAL_RANK={} and LOCAL_WORLD_SIZE={} do not fit; "
                    "LOCAL_RANK is below LOCAL_WORLD_SIZE, and that is at most WORLD_SIZE={}",
                    env.local_rank, env.local_world_size, env.world_size));
  }
}

void read_store(const Reader& reader, LaunchEnvironment& env) {
  const auto port = reader.number("MASTER_PORT", 1, 65535, "a TCP port from 1 to 65535");
  const auto address = reader.text("MASTER_ADDR");
  env.master_addr = address.value_or("");
  env.master_port = port.value_or(0);
  if (env.world_size > 1) {
    if (env.master_addr.empty()) incomplete("WORLD_SIZE", "MASTER_ADDR");
    if (!port) incomplete("WORLD_SIZE", "MASTER_PORT");
  }
  const auto fd = reader.number("FULLSHARD_STORE_FD", 0, INT_MAX, "the number of an open socket");
  if (env.rank == 0) env.store_fd = fd;
  env.store_is_hosted = reader.text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  env.restart =
      reader.number("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, "a count from 0 up").value_or(0);
}

}  // namespace

LaunchEnvironment LaunchEnvironment::read(const Lookup& lookup) {
  const Reader reader(lookup);
  LaunchEnvironment env;
  read_ranks(reader, env);
  read_local_ranks(reader, env);
  if (env.launched) read_store(reader, env);
  return env;
}

LaunchEnvironment LaunchEnvironment::read() {
  return read([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace fullshard::rendezvous
