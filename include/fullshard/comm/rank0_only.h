#pragma once

#include <functional>
#include <string_view>

#include "fullshard/comm/world.h"

namespace fullshard::comm {

/// Collective. Runs `work` on rank 0 while the others wait, and returns on all ranks when it is
/// done: for what one rank does for all, however long it takes, such as making a file of tokens.
/// `what` names it in errors ("tokenising").
///
/// The ranks' timeout does not limit the work: rank 0 sends a sign of life from a thread of its
/// own, several times within the timeout, and the others wait as long as the signs come. They throw
/// base::Error kPeerLost at once when rank 0's process ends, kTimeout naming rank 0 when it is
/// stopped. Work that never returns is waited for without end. `work` must not use groups of the
/// world: the signs travel there.
///
/// An exception of `work` is rethrown on rank 0; the others throw base::Error with its text, of the
/// same code when it was a base::Error, of kPeerLost otherwise. The groups can be used afterwards.
/// When the others fail meanwhile, rank 0 throws that after its work is done, unless the work
/// itself threw.
void rank0_only(World& world, std::string_view what, const std::function<void()>& work);

}  // namespace fullshard::comm
