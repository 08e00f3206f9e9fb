#pragma once

#include "cli/command_line.h"

namespace fullshard::cli {

/// Runs `fullshard doctor trace`. Returns the exit code; throws base::Error.
int doctor_trace(const DoctorTraceCommand& command);

}  // namespace fullshard::cli
