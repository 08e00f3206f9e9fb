#pragma once

#include <string>
#include <string_view>

#include "fullshard/schedule/schedule.h"

namespace fullshard::schedule {

/// A schedule as lines of words, for people, logs and files:
///
///     fullshard-schedule 1
///     units 5
///     forward 0
///     forward 1 evict 0 ahead +2
///     stay 3 +4
///     backward 2
///     end evict 1 2
///
/// The first line names the format and its version. Each event is its phase (forward, backward or
/// recompute) and unit, then, where there are any, with how many units touched before it one
/// operator uses it ("with 1"), the units evicted before it and those gathered ahead, where a plus
/// sign joins one to the gather before it. "stay" lists units that are gathered there in the first
/// step after an update, and stay until the next. The last line lists what is evicted at the end.
/// Words are separated by spaces; lines end in a newline.
std::string to_text(const Schedule& schedule);

/// The inverse. Throws base::Error(kInvalidArgument) naming the line, what stands there and what
/// should. Whether the plan makes sense is for simulate() to say.
Schedule parse(std::string_view text);

}  // namespace fullshard::schedule
