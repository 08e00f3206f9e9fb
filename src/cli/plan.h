#pragma once

#include "cli/command_line.h"

namespace fullshard::cli {

/// Runs `fullshard plan`. Returns the exit code; throws base::Error, also where nothing fits.
int plan(const PlanCommand& command);

}  // namespace fullshard::cli
