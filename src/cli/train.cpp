#include "cli/train.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "cli/engine_library.h"
#include "cli/threads.h"
#include "fullshard/base/error.h"
#include "fullshard/base/machine.h"
#include "fullshard/config/json.h"
#include "fullshard/config/render.h"
#include "fullshard/config/resolve.h"
#include "fullshard/launcher/launch.h"
#include "fullshard/rendezvous/launch_environment/flags.h"

namespace fullshard::cli {
namespace {

using rendezvous::LaunchEnvironment;

/// Carries the resolved configuration from the launcher to its ranks.
constexpr const char* kConfigVariable = "FULLSHARD_CONFIG_JSON";

config::TrainConfig as_given(const TrainCommand& command) {
  config::TrainConfig config;
  if (!command.config_file.empty()) config::apply_toml_file(config, command.config_file);
  config::apply_flags(config, command.flags);
  return config;
}

void refuse_threads_under_launcher(const config::TrainConfig& config,
                                   const LaunchEnvironment& env) {
  if (config.comm.backend != config::Backend::kLocal) return;
  throw base::Error(base::ErrorCode::kConfiguration,
                    "comm.backend is local, which makes threads of one process the ranks, but a "
                    "launcher has started processes as ranks (" +
                        env.describe() + "); use shm, or start the job without the launcher");
}

/// Settles the configuration for where this process stands, and checks it.
config::TrainConfig settle(config::TrainConfig config, const LaunchEnvironment& env) {
  if (env.launched) {
    refuse_threads_under_launcher(config, env);
    config.job.nproc_per_node = env.local_world_size;
  }
  if (config.job.threads_per_rank == 0) config.job.threads_per_rank = threads_from_environment();
  config = config::resolve(std::move(config), base::available_cores());
  config::validate(config, env.launched ? env.world_size : config.job.nproc_per_node);
  return config;
}

int run_engine(const config::TrainConfig& config) {
  // OpenMP reads it when the engine's library is loaded.
  ::setenv("OMP_NUM_THREADS", fmt::format("{}", config.job.threads_per_rank).c_str(), 1);
  return run_in_engine("fullshard_engine_train", config::to_json(config));
}

int launch_ranks(const config::TrainConfig& config) {
  return launcher::launch({.nproc = config.job.nproc_per_node,
                           .command = {own_path(), "train"},
                           .port = static_cast<std::uint16_t>(config.job.master_port),
                           .threads_per_rank = config.job.threads_per_rank,
                           .environment = {{kConfigVariable, config::to_json(config)}}});
}

}  // namespace

int train(const TrainCommand& command) {
  const char* handed_over = std::getenv(kConfigVariable);
  if (handed_over != nullptr && LaunchEnvironment::read().launched) {
    return run_engine(config::parse_json(handed_over, kConfigVariable));
  }
  const config::TrainConfig given = as_given(command);
  const auto env = LaunchEnvironment::read(rendezvous::flags_of(given.job));
  const config::TrainConfig settled = settle(given, env);
  if (command.print_config) {
    std::fputs(config::to_toml(settled).c_str(), stdout);
    return 0;
  }
  const bool alone = env.launched || settled.job.nproc_per_node == 1 ||
                     settled.comm.backend == config::Backend::kLocal;
  return alone ? run_engine(settled) : launch_ranks(settled);
}

}  // namespace fullshard::cli
