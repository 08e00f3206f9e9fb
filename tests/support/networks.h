#pragma once

#include <functional>

#include "fullshard/comm/world.h"

// Ranks that do not share memory, as threads that are connected over Gloo.

namespace fullshard::testing {

/// Like comm::run_as_threads. Rethrows what the first rank threw.
void run_over_gloo(int size, const std::function<void(comm::World&)>& body,
                   const comm::CommOptions& options = {});

/// Runs `body` on ranks that share memory and then on ranks that do not.
void run_both_ways(int size, const std::function<void(comm::World&)>& body);

/// Runs `body` on ranks that are threads of one memory, on ranks that share memory as processes do,
/// on ranks that only send messages, and on ranks of two hosts. `size` is even.
void run_on_every_backend(int size, const std::function<void(comm::World&)>& body);

/// Ranks on `hosts` hosts of `ranks` each, one host after the other: those of a host share memory.
void run_on_hosts(int hosts, int ranks, const std::function<void(comm::World& world)>& body,
                  const comm::CommOptions& options = {});

}  // namespace fullshard::testing
