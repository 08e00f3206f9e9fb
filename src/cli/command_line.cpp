#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "cli/bench_parser.h"
#include "cli/doctor_parser.h"
#include "cli/field_flags.h"
#include "cli/help.h"
#include "cli/parsing.h"
#include "cli/plan_parser.h"
#include "fullshard/config/render.h"

namespace fullshard::cli {
namespace {

/// `fullshard train ...`
class TrainParser {
 public:
  explicit TrainParser(CLI::App& parent) : app_(*parent.add_subcommand("train")), fields_(app_) {
    prepare(app_, help_);
    app_.add_flag("--print-config", command_.print_config);
    app_.add_flag("--help-markdown", markdown_);
    app_.add_option("config", command_.config_file);
  }

  bool chosen() const { return app_.parsed(); }

  Command result() {
    if (help_) return ShowText{train_help()};
    if (markdown_) return ShowText{config::markdown_tables()};
    refuse(app_.remaining());
    command_.flags = fields_.given();
    return command_;
  }

 private:
  void refuse(const std::vector<std::string>& extras) const {
    if (extras.empty()) return;
    const std::string word = first_option(extras, command_.config_file);
    FieldFlags::refuse_near_field(word);
    fail_unknown("option", word, {"--help", "--print-config", "--help-markdown"},
                 "fullshard train --help");
  }

  CLI::App& app_;
  FieldFlags fields_;
  bool help_ = false;
  bool markdown_ = false;
  TrainCommand command_;
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  bool help = false;
  bool version = false;
  prepare(app, help);
  app.add_flag("--version", version);
  TrainParser train(app);
  BenchParser bench(app);
  PlanParser plan(app);
  DoctorParser doctor(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what();  // "NAME: what CLI11 misses"
    fail_usage(message.substr(0, message.find(':')) + " needs a value");
  } catch (const CLI::ConversionError& error) {
    const std::string message = error.what();  // "Could not convert: NAME = VALUE"
    const std::size_t colon = message.find(": ");
    fail_usage(message.substr(colon == std::string::npos ? 0 : colon + 2) +
               "; expected an integer");
  } catch (const CLI::ParseError& error) {
    fail_usage(error.what());
  }
  if (train.chosen()) return train.result();
  if (bench.chosen()) return bench.result(argc, argv);
  if (plan.chosen()) return plan.result();
  if (doctor.chosen()) return doctor.result();
  if (help) return ShowText{main_help()};
  if (version) return ShowText{version_line()};
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) fail_usage("no command given; see 'fullshard --help'");
  if (is_option(extras.front())) {
    fail_unknown("option", without_value(extras.front()), {"--help", "--version"},
                 "fullshard --help");
  }
  fail_unknown("command", extras.front(), {"train", "bench", "plan", "doctor"}, "fullshard --help");
}

}  // namespace fullshard::cli
