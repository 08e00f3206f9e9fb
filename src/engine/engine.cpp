#include <ATen/Context.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/rank.h"
#include "fullshard/comm/flight_signal.h"
#include "fullshard/comm/init.h"
#include "fullshard/comm/world.h"
#include "fullshard/config/json.h"
#include "fullshard/engine/entry.h"
#include "fullshard/rendezvous/launch_environment/flags.h"
#include "fullshard/trainer/stop_signals.h"
#include "fullshard/trainer/train.h"

namespace fullshard::engine {
namespace {

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

trainer::RunContext console_context(const trainer::StopSignals& signals) {
  const char* kind = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org
  const bool terminal =
      ::isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
  return {.out = &std::cout,
          .terminal = terminal,
          .colour = terminal && (no_colour == nullptr || *no_colour == '\0'),
          .columns = terminal_columns,
          .stop_signal = [&signals] { return signals.received(); }};
}

comm::BackendChoice backend_of(config::Backend backend) {
  switch (backend) {
    case config::Backend::kShm: return comm::BackendChoice::kShm;
    case config::Backend::kGloo: return comm::BackendChoice::kGloo;
    default: return comm::BackendChoice::kAuto;
  }
}

comm::CommOptions comm_options(const config::TrainConfig& config) {
  const auto duration_of = [](double seconds) {
    constexpr double kLongest = 1e8;  // three years; much more could not be held in nanoseconds
    return std::chrono::duration_cast<base::Duration>(
        std::chrono::duration<double>(std::min(seconds, kLongest)));
  };
  comm::CommOptions options;
  options.timeout = duration_of(config.comm.timeout_seconds);
  options.heartbeat_timeout = duration_of(config.comm.heartbeat_timeout_seconds);
  options.backend = backend_of(config.comm.backend);
  options.interface = config.comm.interface;
  options.trace_folder = config.comm.trace_folder;
  return options;
}

int exit_code_of(const trainer::TrainResult& result) {
  return result.stop_signal == 0 ? 0 : trainer::exit_code_of(result.stop_signal);
}

/// What is to happen once a rank has joined its job.
using Joined = std::function<void(const comm::World&)>;

/// This process is one rank.
int train_as_rank(const config::TrainConfig& config, comm::World world,
                  const trainer::RunContext& context, const Joined& joined) {
  joined(world);
  return run_as_rank(std::move(world), [&](comm::World& rank) {
    return exit_code_of(trainer::train(config, rank, context));
  });
}

/// This process is the whole job.
int train_as_threads(const config::TrainConfig& config, const trainer::RunContext& context,
                     const Joined& joined) {
  int code = 0;
  const auto rank = [&](comm::World& world) {
    joined(world);
    const trainer::TrainResult result = trainer::train(config, world, context);
    if (world.rank() == 0) code = exit_code_of(result);
  };
  comm::run_as_threads(config.job.nproc_per_node, rank, comm_options(config));
  return code;
}

int train(const char* effective_config_json) {
  const config::TrainConfig config = config::parse_json(effective_config_json);
  const trainer::StopSignals signals;
  const trainer::RunContext context = console_context(signals);
  const comm::CommOptions options = comm_options(config);
  std::optional<comm::FlightSignal> flight_signal;
  if (!options.trace_folder.empty()) flight_signal.emplace(options.trace_folder);
  const Joined joined = [&](const comm::World& world) {
    if (flight_signal) flight_signal->watch(world);
  };
  const auto env = rendezvous::LaunchEnvironment::read(rendezvous::flags_of(config.job));
  if (env.launched) return train_as_rank(config, comm::init(options, env), context, joined);
  if (config.job.nproc_per_node > 1) return train_as_threads(config, context, joined);
  return train_as_rank(config, comm::single_rank(options), context, joined);
}

}  // namespace
}  // namespace fullshard::engine

int fullshard_engine_train(const char* effective_config_json) {
  try {
    return fullshard::engine::train(effective_config_json);
  } catch (...) {
    return fullshard::engine::report_current_exception();
  }
}
