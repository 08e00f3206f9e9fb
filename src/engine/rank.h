#pragma once

#include <functional>

#include "fullshard/comm/world.h"

namespace fullshard::engine {

/// Tells why the exception being handled ends this process, through base::report_error; returns
/// the exit code. Call inside a catch block.
int report_current_exception() noexcept;

/// This process is one rank: runs `body` and returns its exit code. An exception of it is reported,
/// then the other ranks are told that this one leaves.
int run_as_rank(comm::World world, const std::function<int(comm::World&)>& body);

}  // namespace fullshard::engine
