#pragma once

#include "fullshard/config/train_config.h"
#include "fullshard/rendezvous/launch_environment.h"

namespace fullshard::rendezvous {

/// What a training run's configuration says about this process's place in its job.
LaunchFlags flags_of(const config::JobConfig& job);

}  // namespace fullshard::rendezvous
