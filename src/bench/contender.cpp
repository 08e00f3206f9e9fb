#include "bench/contender.h"

#include <fmt/format.h>

#include "fullshard/base/error_report.h"

namespace fullshard::bench {
namespace {

/// What a surrounding launcher or an earlier measurement may have left in the environment.
std::vector<std::string> foreign_variables() {
  return {"RANK",        "WORLD_SIZE",  "LOCAL_RANK",           "LOCAL_WORLD_SIZE",
          "MASTER_ADDR", "MASTER_PORT", base::kErrorFdVariable, "PEER_MEM_DIR"};
}

Contender ours(const StepBenchOptions& options, const std::string& name, const StepSpec& spec) {
  const auto invoke = [spec, measure = options.measure](int steps, const std::string& gate) {
    StepSpec run = spec;
    run.steps = steps;
    run.memory_gate = gate;
    std::vector<std::string> command = measure;
    command.push_back(to_json(run));
    return make_invocation(std::move(command), threads_per_process(run));
  };
  return {.name = name,
          .processes = process_count(spec),
          .attempts = 1,
          .ours = true,
          .invoke = invoke};
}

/// Runs the script in the arguments as Python itself would, but with denormal numbers flushed to
/// zero, as our contenders do: with them a model that diverges measures the processor's slow path.
constexpr const char* kRunFlushed =
    "import os, runpy, sys, torch; torch.set_flush_denormal(True); del sys.argv[0]; "
    "sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0])); "
    "runpy.run_path(sys.argv[0], run_name='__main__')";

/// The peer's flags for the shape; `batch` rows a process.
std::vector<std::string> peer_flags(StepShape shape, std::int64_t batch, int steps) {
  shape.batch = batch;
  std::vector<std::string> flags;
  if (shape.model != "gpt") flags = {"--model", shape.model};
  for (const ShapeSize& size : sizes_of(shape.model)) {
    flags.push_back(fmt::format("--{}", size.name));
    flags.push_back(fmt::format("{}", shape.*size.field));
  }
  flags.insert(flags.end(), {"--steps", fmt::format("{}", steps)});
  return flags;
}

std::vector<std::string> peer_command(const StepBenchOptions& options, const std::string& mode,
                                      int processes, int steps) {
  std::vector<std::string> command = {options.peer_python};
  if (mode != kSingleMode) {
    command.insert(command.end(),
                   {"-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                    fmt::format("{}", processes), "--no-python", options.peer_python});
  }
  command.insert(command.end(), {"-c", kRunFlushed, options.peer, "--mode", mode});
  const std::int64_t batch = options.spec.shape.batch * (options.spec.ranks / processes);
  for (std::string& flag : peer_flags(options.spec.shape, batch, steps)) {
    command.push_back(std::move(flag));
  }
  return command;
}

Contender peer(const StepBenchOptions& options, const std::string& mode) {
  const int processes = mode == kSingleMode ? 1 : options.spec.ranks;
  const int threads = options.spec.threads * (options.spec.ranks / processes);
  const auto invoke = [=](int steps, const std::string& gate) {
    Invocation run = make_invocation(peer_command(options, mode, processes, steps), threads);
    if (!gate.empty()) run.environment.emplace_back("PEER_MEM_DIR", gate);
    return run;
  };
  // PyTorch's process groups sometimes abort while a job ends, on a busy machine above all.
  return {.name = "peer " + mode,
          .processes = processes,
          .attempts = 2,
          .ours = false,
          .invoke = invoke};
}

}  // namespace

Invocation make_invocation(std::vector<std::string> command, int threads) {
  return {.command = std::move(command),
          .environment = {{"OMP_NUM_THREADS", fmt::format("{}", threads)}},
          .unset = foreign_variables()};
}

std::vector<std::pair<std::string, StepSpec>> sharded_specs(const StepBenchOptions& options) {
  StepSpec first = options.spec;
  first.sharded = true;
  first.units = options.units.front();
  first.atom = options.atoms.front();
  std::vector<std::pair<std::string, StepSpec>> specs = {{kSharded, first}};
  for (std::size_t i = 1; i < options.units.size(); ++i) {
    specs.emplace_back("units " + options.units[i], first).second.units = options.units[i];
  }
  for (std::size_t i = 1; i < options.atoms.size(); ++i) {
    specs.emplace_back("atoms " + options.atoms[i], first).second.atom = options.atoms[i];
  }
  return specs;
}

std::vector<Contender> make_contenders(const StepBenchOptions& options) {
  StepSpec plain = options.spec;
  plain.sharded = false;
  std::vector<Contender> contenders = {ours(options, kPlain, plain)};
  for (const auto& [name, spec] : sharded_specs(options)) {
    contenders.push_back(ours(options, name, spec));
  }
  if (options.peer.empty()) return contenders;
  for (const std::string& mode : options.peer_modes) contenders.push_back(peer(options, mode));
  return contenders;
}

}  // namespace fullshard::bench
