#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fullshard/rendezvous/launch_environment.h"

namespace fullshard::rendezvous {

/// A value and what it was found in: the name of a variable or a flag, or words.
template <typename T>
struct Found {
  T value;
  std::string from;
};

using FoundInt = std::optional<Found<int>>;
using FoundText = std::optional<Found<std::string>>;

/// What one launcher's variables say; absent is what they do not.
struct Findings {
  FoundInt rank;
  FoundInt world_size;
  FoundInt local_rank;
  FoundInt local_world_size;
  FoundText master_addr;
  FoundInt master_port;
};

/// Environment variables as the types they stand for.
class Variables {
 public:
  /// `lookup` must outlive it.
  explicit Variables(const LaunchEnvironment::Lookup& lookup) : lookup_(lookup) {}

  FoundText text(const char* name) const;

  /// The first of the variables that is set.
  FoundText first_text(std::initializer_list<const char*> names) const;

  /// A whole number in [least, most]. Throws kConfiguration saying that it should be `right`.
  FoundInt number(const char* name, int least, int most, std::string_view right) const;

  FoundInt rank(const char* name) const;  ///< from 0 up
  FoundInt size(const char* name) const;  ///< from 1 up

 private:
  const LaunchEnvironment::Lookup& lookup_;
};

/// A port for the store of a job with this identity: the same on all its ranks, seldom that of
/// another job, and below the ports that Linux gives to clients.
int port_of_job(std::string_view identity);

/// The port that torch's launchers take where nothing distinguishes the job.
inline constexpr int kUsualPort = 29500;

}  // namespace fullshard::rendezvous
