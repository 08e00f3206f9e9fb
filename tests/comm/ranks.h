#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fullshard/comm/world.h"

namespace fullshard::comm::testing {

/// How the ranks of a test live.
enum class Backend { kLocal, kShmThreads, kShmProcesses };

std::string name_of(Backend backend);

/// Every backend that the build can run: under ThreadSanitizer only the ranks that are threads of
/// one memory, for it can follow neither forks nor memory that is mapped twice.
std::vector<Backend> backends();

/// Runs `body` once a rank and returns when all ranks have ended. Failed expectations of any rank,
/// and exceptions that leave `body`, fail the test.
void run_ranks(Backend backend, int size, const std::function<void(World&)>& body,
               const CommOptions& options = {});

}  // namespace fullshard::comm::testing
