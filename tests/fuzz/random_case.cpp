#include "fuzz/random_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "fullshard/base/error.h"

namespace fullshard::fuzz {
namespace {

using shard::ParameterRule;
using shard::ShardingStrategy;

const char* name_of(ShardingStrategy strategy) {
  static constexpr const char* kNames[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                           "HYBRID_SHARD", "SHARD_OPTIMIZER_ONLY"};
  return kNames[static_cast<int>(strategy)];
}

struct Names {
  std::vector<std::string> modules;
  std::vector<std::string> parameters;
  std::vector<std::string> distinct;  // the same, each by one of its names
  std::vector<std::string> classes;   // of modules that hold parameters
  bool has_blocks = false;            // for transformer_blocks()
};

Names names_of(const NetSpec& spec) {
  Names names;
  const auto net = build(spec);
  for (const auto& item : net->named_modules("", /*include_self=*/false)) {
    names.modules.push_back(item.key());
  }
  std::set<const void*> seen;
  for (const auto& item : net->named_parameters()) {
    names.parameters.push_back(item.key());
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      names.distinct.push_back(item.key());
    }
  }
  const shard::ModelTree tree = shard::tree_of(net);
  shard::for_each_node(tree.root, [&](const shard::ModelNode& node) {
    if (!node.parameters.empty()) names.classes.push_back(node.class_name);
  });
  try {
    shard::transformer_blocks()(tree.root);
    names.has_blocks = true;
  } catch (const base::Error&) {
  }
  return names;
}

WrapSpec random_wrap(Random& random, const Names& names) {
  using Wrap = WrapSpec::Kind;
  std::vector<Wrap> kinds = {Wrap::kRoot,  Wrap::kAutomatic, Wrap::kAutomatic, Wrap::kSize,
                             Wrap::kNamed, Wrap::kNamed,     Wrap::kClasses,   Wrap::kGroups};
  if (names.has_blocks) kinds.insert(kinds.end(), 2, Wrap::kBlocks);
  WrapSpec wrap{.kind = random.of(kinds)};
  wrap.min_params = random.between(1, 80);
  wrap.classes = {random.of(names.classes), random.of(names.classes)};
  for (const std::string& module : names.modules) {
    if (random.one_in(2)) wrap.modules.push_back(module);
  }
  return wrap;
}

std::vector<ParameterRule> random_rules(Random& random, const Names& names) {
  static const std::vector<ShardingStrategy> kStrategies = {
      ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP, ShardingStrategy::NO_SHARD,
      ShardingStrategy::SHARD_OPTIMIZER_ONLY};
  static const std::vector<layout::Atom> kAtoms = {layout::Atom::kElement, layout::Atom::kRow,
                                                   layout::Atom::kColumn, layout::Atom::kParameter,
                                                   layout::Atom::kUnit};
  std::vector<ParameterRule> rules;
  const int count = random.one_in(2) ? 0 : random.between(1, 3);
  for (int i = 0; i < count; ++i) {
    ParameterRule rule{.pattern = random.of(names.parameters)};
    if (random.one_in(3)) rule.pattern = "*weight";
    if (random.one_in(4)) rule = {.pattern = "", .module_class = random.of(names.classes)};
    if (random.one_in(2)) rule.strategy = random.of(kStrategies);
    if (random.one_in(2)) {
      rule.atom = random.of(kAtoms);
      rule.group = random.between(1, 3);
    }
    rules.push_back(rule);
  }
  return rules;
}

std::vector<double> random_weights(Random& random, int shards) {
  if (!random.one_in(4)) return {};
  std::vector<double> weights;
  for (int i = 0; i < shards; ++i) weights.push_back(random.between(0, 3));
  if (std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0; })) return {};
  return weights;
}

// Two of eight seeds are apart: on two hosts, or with nothing in common at all.
void choose_ranks(Random& random, Case& run) {
  run.ranks = random.between(1, 4);
  if (run.seed % 8 == 0) run.transport = Transport::kGloo;
  if (run.seed % 8 == 4) {
    run.transport = Transport::kHosts;
    run.ranks = random.of(std::vector{2, 4, 4, 4});
  }
}

// Replicas are what several hosts are for.
void choose_mesh(Random& random, Case& run) {
  run.replicate = 1;
  if (run.transport == Transport::kHosts) {
    run.replicate = run.ranks == 4 ? random.of(std::vector{1, 2, 2, 2, 4}) : random.between(1, 2);
  } else if (run.ranks > 1 && random.one_in(4)) {
    run.replicate = run.ranks == 4 ? random.of(std::vector{2, 4}) : run.ranks;
  }
}

int smaller_group(Random& random, int shards) {
  std::vector<int> divisors = {0};
  for (int size = 1; size <= shards; ++size) {
    if (shards % size == 0) divisors.push_back(size);
  }
  return random.of(divisors);
}

shard::FullyShardOptions random_sharding(Random& random, const Case& run, const Names& names) {
  std::vector<ShardingStrategy> strategies = {
      ShardingStrategy::FULL_SHARD, ShardingStrategy::FULL_SHARD, ShardingStrategy::SHARD_GRAD_OP,
      ShardingStrategy::NO_SHARD, ShardingStrategy::SHARD_OPTIMIZER_ONLY};
  if (run.replicate > 1) strategies = {ShardingStrategy::HYBRID_SHARD, strategies[2]};
  shard::FullyShardOptions options{.sharding_strategy = random.of(strategies),
                                   .rules = random_rules(random, names),
                                   .sync_module_states = random.one_in(2)};
  if (random.one_in(4)) options.gradient_divide_factor = random.between(1, 9);
  options.shard_weights = random_weights(random, run.ranks / run.replicate);
  options.min_shard_elements = random.of(std::vector{0, 0, 10, 50});
  if (random.one_in(4)) options.keep_gathered = {random.of(names.modules)};
  options.forward_prefetch = random.of(std::vector{0, 0, 1, 2});
  options.backward_prefetch = random.of(std::vector{0, 0, 1, 2});
  options.limit_all_gathers = !random.one_in(4);
  options.gather_bucket_bytes = random.of(std::vector{0, 0, 512, 4096});
  options.reduce_bucket_bytes = random.of(std::vector{0, 0, 512, 4096});
  if (random.one_in(3)) {
    options.reshard_after_forward = smaller_group(random, run.ranks / run.replicate);
  }
  if (random.one_in(6)) options.gradient_predivide_factor = random.between(2, 5);
  if (random.one_in(6)) {
    options.communication_hook = shard::compress_gradients_to(at::kDouble);  // loses nothing
  }
  if (run.replicate > 1) options.shard_optimizer_over_replicas = random.one_in(2);
  return options;
}

std::vector<FreezeSpec> random_freezes(Random& random, const Names& names, std::int64_t steps) {
  std::vector<FreezeSpec> freezes;
  for (const std::string& parameter : names.distinct) {
    if (parameter.starts_with("head.") || !random.one_in(8)) continue;
    const int last = static_cast<int>(steps);
    freezes.push_back({parameter, random.one_in(2) ? last : random.between(1, last)});
  }
  return freezes;
}

bool ranks_differ(const NetSpec& net) {
  return std::any_of(net.calls.begin(), net.calls.end(),
                     [](const CallSpec& call) { return call.only_rank >= 0; });
}

// Where gradients travel as messages, ranks that differ have to say so, and others may.
void choose_dynamic(Random& random, Case& run) {
  const bool messages =
      run.transport != Transport::kThreads || run.sharding.communication_hook != nullptr;
  run.sharding.dynamic = random.one_in(3) || (messages && ranks_differ(run.net));
}

// What is never trained may be left alone, where all ranks begin with the same values.
void ignore_some(Random& random, Case& run) {
  if (run.sharding.sync_module_states) return;
  for (const FreezeSpec& freeze : run.freezes) {
    if (freeze.thawed < run.steps || random.one_in(2)) continue;
    run.sharding.rules.insert(run.sharding.rules.begin(),
                              {.pattern = freeze.pattern, .ignore = true});
  }
}

void convert_all(Case& run) {
  for (ParameterRule& rule : run.sharding.rules) {
    if (!rule.ignore) rule.dtype = at::kDouble;
  }
  run.sharding.rules.push_back({.pattern = "*", .dtype = at::kDouble});
}

std::vector<Interlude> random_interludes(Random& random, std::int64_t steps) {
  std::vector<Interlude> out;
  while (std::ssize(out) < steps) {
    const int choice = random.one_in(2) ? 0 : random.between(1, 7);
    out.push_back(static_cast<Interlude>(choice));
  }
  return out;
}

std::vector<int> numbers(const std::vector<Interlude>& interludes) {
  std::vector<int> out;
  for (const Interlude interlude : interludes) out.push_back(static_cast<int>(interlude));
  return out;
}

}  // namespace

Case random_case(std::uint64_t seed) {
  Random random(seed);
  Case run{.seed = seed};
  choose_ranks(random, run);
  run.net = random_net(random, run.ranks);
  const Names names = names_of(run.net);
  choose_mesh(random, run);
  run.wrap = random_wrap(random, names);
  run.sharding = random_sharding(random, run, names);
  run.limit = random.one_in(4) ? random.of(std::vector{1.0, 1.5, 2.0}) : 0;
  run.optimizer = static_cast<Optimizer>(random.between(0, 5));
  run.zero_grad = static_cast<ZeroGrad>(random.between(0, 3));
  run.steps = random.between(2, 5);
  run.freezes = random_freezes(random, names, run.steps);
  run.micro_batches = random.one_in(2) ? 1 : random.between(2, 3);
  run.deferred = run.micro_batches > 1 && random.one_in(2);
  run.max_norm = random.one_in(2) ? 0 : random.of(std::vector{0.05, 0.5});
  run.norm_type = random.of(std::vector{1.0, 2.0, std::numeric_limits<double>::infinity()});
  run.before_update = random_interludes(random, run.steps);
  run.after_update = random_interludes(random, run.steps);
  choose_dynamic(random, run);
  ignore_some(random, run);
  const bool ignores = std::any_of(run.sharding.rules.begin(), run.sharding.rules.end(),
                                   [](const ParameterRule& rule) { return rule.ignore; });
  run.from_float = !ignores && random.one_in(4);
  if (run.from_float) convert_all(run);
  run.in_float = !ignores && !run.from_float && random.one_in(6);
  if (run.in_float) run.sharding.mixed_precision.param_dtype = at::kFloat;
  // Moving wants gradients cleared, which is another training where they are zeroed in place.
  const bool clears = run.zero_grad == ZeroGrad::kOptimizer || run.zero_grad == ZeroGrad::kHandle;
  run.moves = clears && random.one_in(3);
  return run;
}

std::string to_string(const WrapSpec& wrap) {
  switch (wrap.kind) {
    case WrapSpec::Kind::kRoot: return "root_only";
    case WrapSpec::Kind::kAutomatic: return "automatic";
    case WrapSpec::Kind::kSize: return fmt::format("size_based({})", wrap.min_params);
    case WrapSpec::Kind::kNamed: return fmt::format("named {}", wrap.modules);
    case WrapSpec::Kind::kClasses: return fmt::format("of classes {}", wrap.classes);
    case WrapSpec::Kind::kBlocks: return "transformer_blocks";
    case WrapSpec::Kind::kGroups: return fmt::format("automatic with group {}", wrap.modules);
  }
  return "";
}

std::string to_string(const Case& run) {
  static constexpr const char* kOptimizers[] = {"SGD",     "Adam",    "AdamW",
                                                "RMSprop", "Adagrad", "fused AdamW"};
  const shard::FullyShardOptions& options = run.sharding;
  std::string text = fmt::format(
      "seed {}: {} ranks, replicate {}{}, {}, units {}\n  net: {}\n", run.seed, run.ranks,
      run.replicate, options.shard_optimizer_over_replicas ? " dividing updates" : "",
      name_of(options.sharding_strategy), to_string(run.wrap), to_string(run.net));
  for (const ParameterRule& rule : options.rules) {
    text += fmt::format("  rule {}{}: {}, atom {}, group {}{}{}\n", rule.pattern,
                        rule.module_class.empty() ? "" : "class " + rule.module_class,
                        rule.strategy ? name_of(*rule.strategy) : "-",
                        rule.atom ? static_cast<int>(*rule.atom) : -1, rule.group,
                        rule.dtype ? ", to double" : "", rule.ignore ? ", ignored" : "");
  }
  for (const FreezeSpec& freeze : run.freezes) {
    text += fmt::format("  {} frozen before step {}\n", freeze.pattern, freeze.thawed);
  }
  if (run.transport == Transport::kGloo) text += "  over Gloo\n";
  if (run.transport == Transport::kHosts) text += "  on two hosts\n";
  if (options.dynamic) text += "  dynamic\n";
  if (options.communication_hook) text += "  with a communication hook\n";
  if (run.from_float) text += "  from single precision\n";
  if (run.in_float) text += "  computing in single precision\n";
  if (run.moves) text += "  shares move after each update\n";
  return text + fmt::format(
                    "  sync {}, divide {}, weights {}, min {}, keep {}, prefetch {} {} {}, buckets "
                    "{} {}, reshard to {}, predivide {}, limit {}\n  {}, {} steps of {}{}, "
                    "zero_grad {}, clip {} by norm {}, "
                    "before update {}, after {}\n",
                    options.sync_module_states, options.gradient_divide_factor,
                    options.shard_weights, options.min_shard_elements, options.keep_gathered,
                    options.forward_prefetch.value_or(-1), options.backward_prefetch.value_or(-1),
                    options.limit_all_gathers ? "" : "unlimited", options.gather_bucket_bytes,
                    options.reduce_bucket_bytes, options.reshard_after_forward,
                    options.gradient_predivide_factor, run.limit,
                    kOptimizers[static_cast<int>(run.optimizer)], run.steps, run.micro_batches,
                    run.deferred ? " deferred" : "", static_cast<int>(run.zero_grad), run.max_norm,
                    run.norm_type, numbers(run.before_update), numbers(run.after_update));
}

shard::WrapPolicy policy_of(const WrapSpec& spec) {
  switch (spec.kind) {
    case WrapSpec::Kind::kRoot: return shard::root_only();
    case WrapSpec::Kind::kAutomatic: return shard::automatic();
    case WrapSpec::Kind::kSize: return shard::size_based(spec.min_params);
    case WrapSpec::Kind::kNamed: return shard::wrap_named(spec.modules);
    case WrapSpec::Kind::kClasses: return shard::wrap_classes(spec.classes);
    case WrapSpec::Kind::kBlocks: return shard::transformer_blocks();
    case WrapSpec::Kind::kGroups: return shard::with_groups(shard::automatic(), {spec.modules});
  }
  return nullptr;
}

}  // namespace fullshard::fuzz
