#pragma once

#include "fullshard/doctor/trace.h"

namespace fullshard::doctor {

/// Says in sentences what the rest of the report holds: fills `findings` and `remarks`.
void add_findings(TraceReport& report);

/// "in #13 all_gather (...) for 8.2 s", "has no record".
std::string describe(const Place& place);

/// What the rank did last in any group, as its last entry says.
std::string last_act(const comm::FlightRecord& record);

}  // namespace fullshard::doctor
