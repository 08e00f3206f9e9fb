#include "cli/doctor_parser.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/help.h"

namespace fullshard::cli {
namespace {

constexpr const char* kHelp = "fullshard doctor --help";
constexpr const char* kTraceHelp = "fullshard doctor trace --help";

}  // namespace

DoctorParser::DoctorParser(CLI::App& parent) : doctor_(parent.add_subcommand("doctor")) {
  prepare(*doctor_, help_);
  trace_ = doctor_->add_subcommand("trace");
  prepare(*trace_, trace_help_);
  trace_->add_flag("--json", json_);
  trace_->add_option("files", files_);
}

bool DoctorParser::chosen() const { return doctor_->parsed(); }

Command DoctorParser::trace_result() const {
  if (trace_help_) return ShowText{doctor_trace_help()};
  for (const std::string& extra : trace_->remaining()) {
    fail_unknown("option", without_value(extra), {"--json", "--help"}, kTraceHelp);
  }
  if (files_.empty()) {
    fail_usage(
        fmt::format("no flight records given; name their files or folder; see '{}'", kTraceHelp));
  }
  return DoctorTraceCommand{{files_.begin(), files_.end()}, json_};
}

Command DoctorParser::result() const {
  if (trace_->parsed()) return trace_result();
  if (help_) return ShowText{doctor_help()};
  const std::vector<std::string> extras = doctor_->remaining();
  if (extras.empty()) fail_usage(fmt::format("nothing to look at given; see '{}'", kHelp));
  if (is_option(extras.front())) {
    fail_unknown("option", without_value(extras.front()), {"--help"}, kHelp);
  }
  fail_unknown("command", extras.front(), {"trace"}, kHelp);
}

}  // namespace fullshard::cli
