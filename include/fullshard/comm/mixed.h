#pragma once

#include <memory>

#include "fullshard/comm/group.h"

namespace fullshard::comm {

/// One group of two that have the same ranks: buffers in host memory go to `host`, buffers on a
/// device to `devices`, chosen by Buffer::device, call by call. Barriers, shared memory and signal
/// boards are those of `host`; abort() tells both, and a subgroup is again one of each. Operations
/// of the two sides are kept in order each for itself, not with each other.
///
/// Throws base::Error kInvalidArgument when the groups differ in size or in this rank's number;
/// calls throw it when one of their buffers lies on each side.
std::shared_ptr<Group> make_mixed_group(std::shared_ptr<Group> host,
                                        std::shared_ptr<Group> devices);

}  // namespace fullshard::comm
