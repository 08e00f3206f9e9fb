#include "cli/plan_parser.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>

#include "cli/help.h"

namespace fullshard::cli {
namespace {

constexpr const char* kHelp = "fullshard plan --help";

// Without those of the schema.
std::vector<std::string> own_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_name().find('.') == std::string::npos) names.push_back(option->get_name());
  }
  return names;
}

double number(const char* flag, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return value;
  fail_usage(fmt::format("{}: found \"{}\"; expected a number", flag, text));
}

}  // namespace

PlanParser::PlanParser(CLI::App& parent) : app_(*parent.add_subcommand("plan")), fields_(app_) {
  prepare(app_, help_);
  app_.add_option("config", command_.config_file);
  add_model();
  add_machines();
  add_choices();
}

void PlanParser::add_model() {
  planner::Input& input = command_.input;
  app_.add_option("--model", input.model);
  app_.add_option("--kind", input.kind);
  app_.add_option("--layers", input.layers);
  app_.add_option("--dim", input.dim);
  app_.add_option("--heads", input.heads);
  app_.add_option("--vocab", input.vocab);
  app_.add_option("--seq", input.seq);
  app_.add_option("--mlp-ratio", input.mlp_ratio);
  app_.add_option("--patch", input.patch);
  app_.add_flag("--untied", input.untied);
  app_.add_option("--batch", input.batch);
  app_.add_option("--micro-batches", input.micro_batches);
  app_.add_option("--precision", input.precision);
}

void PlanParser::add_machines() {
  planner::Input& input = command_.input;
  app_.add_option("--hosts", input.hosts);
  app_.add_option("--ranks-per-host", input.ranks_per_host);
  app_.add_option("--threads-per-rank", input.threads_per_rank);
  app_.add_option("--memory-per-host", input.memory_per_host);
  app_.add_option("--memory-per-rank", input.memory_per_rank);
  for (Rate& rate : rates_) app_.add_option(rate.flag, rate.text);
  app_.add_option("--measured", input.measured);
}

void PlanParser::add_choices() {
  app_.add_option("--strategy", strategies_)->delimiter(',');
  app_.add_option("--units", units_)->delimiter(',');
  app_.add_option("--atoms", atoms_)->delimiter(',');
  app_.add_option("--recompute", recompute_);
  app_.add_option("--rows", command_.rows);
  app_.add_option("--json", command_.json);
}

bool PlanParser::chosen() const { return app_.parsed(); }

void PlanParser::refuse_extras() const {
  const std::vector<std::string> extras = app_.remaining();
  if (extras.empty()) return;
  const std::string word = first_option(extras, command_.config_file);
  if (word.find('.') != std::string::npos) FieldFlags::refuse_near_field(word);
  fail_unknown("option", word, own_options(app_), kHelp);
}

planner::Choices PlanParser::choices() const {
  planner::Choices choices;
  for (const std::string& name : strategies_) {
    choices.strategies.push_back(planner::parse_strategy(name));
  }
  for (const std::string& name : units_) choices.units.push_back(planner::parse_units(name));
  for (const std::string& name : atoms_) choices.cuts.push_back(planner::parse_cuts(name));
  choices.recompute = planner::parse_recompute(recompute_);
  return choices;
}

void PlanParser::set_rates(planner::Input& input) const {
  for (const Rate& rate : rates_) {
    if (!rate.text.empty()) input.*rate.field = number(rate.flag, rate.text);
  }
}

Command PlanParser::result() const {
  if (help_) return ShowText{plan_help()};
  refuse_extras();
  PlanCommand command = command_;
  command.flags = fields_.given();
  set_rates(command.input);
  command.choices = choices();
  if (command.rows < 1) {
    fail_usage(fmt::format("--rows: found {}; expected an integer, 1 or more", command.rows));
  }
  return command;
}

}  // namespace fullshard::cli
