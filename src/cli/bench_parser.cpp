#include "cli/bench_parser.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <utility>

#include "cli/engine_library.h"
#include "cli/help.h"
#include "cli/parsing.h"

namespace fullshard::cli {
namespace {

constexpr const char* kHelp = "fullshard bench --help";
constexpr const char* kStepHelp = "fullshard bench step --help";
constexpr const char* kCollectivesHelp = "fullshard bench collectives --help";

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
  return names;
}

}  // namespace

BenchParser::BenchParser(CLI::App& parent) : bench_(parent.add_subcommand("bench")) {
  prepare(*bench_, help_);
  add_step();
  add_collectives();
  measure_ = bench_->add_subcommand("measure-step");
  measure_->add_option("spec", measured_spec_)->required();
  measure_collectives_ = bench_->add_subcommand("measure-collectives");
  measure_collectives_->add_option("spec", measured_spec_)->required();
}

void BenchParser::add_collectives() {
  collectives_ = bench_->add_subcommand("collectives");
  prepare(*collectives_, collectives_help_);
  collectives_->add_option("--ranks", collectives_options_.spec.ranks);
  collectives_->add_option("--operations", collectives_options_.spec.operations)->delimiter(',');
  collectives_->add_option("--sizes", collectives_options_.spec.sizes)->delimiter(',');
  collectives_->add_option("--rounds", collectives_options_.rounds);
  collectives_->add_option("--json", collectives_options_.json);
}

void BenchParser::add_step() {
  step_ = bench_->add_subcommand("step");
  prepare(*step_, step_help_);
  step_->add_option("--model", options_.spec.shape.model);
  step_->add_option("--shape", options_.shape_name);
  for (const bench::ShapeSize& size : bench::shape_sizes()) {
    step_->add_option(fmt::format("--{}", size.name), sizes_[size.name]);
  }
  step_->add_option("--ranks", options_.spec.ranks);
  step_->add_option("--threads-per-rank", options_.spec.threads);
  step_->add_flag("--one-rank", one_rank_);
  step_->add_option("--strategy", options_.spec.strategy);
  step_->add_option("--units", options_.units)->delimiter(',');
  step_->add_option("--atoms", options_.atoms)->delimiter(',');
  step_->add_option("--recompute", options_.spec.recompute);
  step_->add_option("--pairs", options_.pairs);
  step_->add_option("--steps", options_.spec.steps);
  step_->add_flag("--no-memory", no_memory_);
  step_->add_option("--peer", options_.peer);
  step_->add_option("--peer-python", options_.peer_python);
  step_->add_option("--peer-modes", options_.peer_modes)->delimiter(',');
  step_->add_option("--json", options_.json);
}

bool BenchParser::chosen() const { return bench_->parsed(); }

void BenchParser::refuse_extras(const CLI::App& app, const char* help) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  if (is_option(extras.front())) {
    fail_unknown("option", without_value(extras.front()), long_options(app), help);
  }
  fail_usage(fmt::format("unexpected argument '{}'; see '{}'", extras.front(), help));
}

/// Whether it has changed anything.
bool BenchParser::override_sizes(bench::StepShape& shape) const {
  const std::vector<bench::ShapeSize> known = bench::sizes_of(shape.model);
  bool changed = false;
  for (const bench::ShapeSize& size : bench::shape_sizes()) {
    const std::optional<std::int64_t>& given = sizes_.at(size.name);
    if (!given) continue;
    if (std::ranges::find(known, size.field, &bench::ShapeSize::field) == known.end()) {
      fail_usage(fmt::format("--{}: the model {} has no such size", size.name, shape.model));
    }
    changed = changed || *given != shape.*size.field;
    shape.*size.field = *given;
  }
  return changed;
}

BenchStepCommand BenchParser::step_command(int argc, const char* const* argv) const {
  bench::StepBenchOptions options = options_;
  const std::string model = options.spec.shape.model;
  if (options.shape_name.empty()) options.shape_name = bench::usual_shape(model);
  options.spec.shape = bench::named_shape(model, options.shape_name);
  if (override_sizes(options.spec.shape)) options.shape_name += ", changed";
  if (options.spec.recompute > 0) options.shape_name += ", recomputing";
  if (one_rank_) options.spec.ranks = options.spec.threads = 1;
  options.memory = !no_memory_;
  options.measure = {own_path(), "bench", "measure-step"};
  options.command_line.assign(argv, argv + argc);
  return {std::move(options)};
}

Command BenchParser::result(int argc, const char* const* argv) const {
  if (step_->parsed()) {
    if (step_help_) return ShowText{bench_step_help()};
    refuse_extras(*step_, kStepHelp);
    return step_command(argc, argv);
  }
  if (collectives_->parsed()) {
    if (collectives_help_) return ShowText{bench_collectives_help()};
    refuse_extras(*collectives_, kCollectivesHelp);
    bench::CollectivesBenchOptions options = collectives_options_;
    options.measure = {own_path(), "bench", "measure-collectives"};
    options.command_line.assign(argv, argv + argc);
    return BenchCollectivesCommand{std::move(options)};
  }
  if (measure_collectives_->parsed()) return MeasureCollectivesCommand{measured_spec_};
  if (measure_->parsed()) return MeasureStepCommand{measured_spec_};
  if (help_) return ShowText{bench_help()};
  const std::vector<std::string> extras = bench_->remaining();
  if (extras.empty()) fail_usage(fmt::format("no benchmark given; see '{}'", kHelp));
  if (is_option(extras.front())) {
    fail_unknown("option", without_value(extras.front()), {"--help"}, kHelp);
  }
  fail_unknown("benchmark", extras.front(), {"step", "collectives"}, kHelp);
}

}  // namespace fullshard::cli
