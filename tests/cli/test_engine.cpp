// An engine for the command line's tests: does what TEST_ENGINE says instead of training.
//   show          writes what it was handed to $TEST_ENGINE_DIR/<rank>.json
//   fail R TEXT   rank R reports an error; the others wait to be ended
//   wait          says so in $TEST_ENGINE_DIR/ready<rank>, and ends with 0 at SIGINT or SIGTERM
//   talk          every rank writes to stdout and stderr
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fullshard/base/error.h"
#include "fullshard/base/error_report.h"
#include "fullshard/engine/entry.h"

namespace {

using namespace fullshard;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string rank() { return variable("RANK").empty() ? "alone" : variable("RANK"); }

std::string path(const std::string& name) { return variable("TEST_ENGINE_DIR") + "/" + name; }

int show(const char* config) {
  nlohmann::json shown = {{"config", nlohmann::json::parse(config)},
                          {"handed", config},
                          {"pid", ::getpid()},
                          {"stdout_is_terminal", ::isatty(STDOUT_FILENO) == 1}};
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS"}) {
    shown[name] = variable(name);
  }
  std::ofstream(path(rank() + ".json")) << shown;
  return 0;
}

[[noreturn]] void end_with_zero(int) { ::_exit(0); }

int wait_for_signal() {
  std::signal(SIGINT, end_with_zero);
  std::signal(SIGTERM, end_with_zero);
  std::ofstream(path("ready" + rank())) << ::getpid();
  for (;;) ::pause();
}

int fail(std::istringstream& order) {
  std::string who;
  std::string text;
  order >> who >> std::ws;
  std::getline(order, text);
  if (who != rank()) return wait_for_signal();
  base::report_error(base::Error(base::ErrorCode::kInvalidArgument, text));
  return 1;
}

int talk() {
  fmt::print("out {}\n", rank());
  fmt::print(stderr, "err {}\n", rank());
  return 0;
}

}  // namespace

int fullshard_engine_train(const char* effective_config_json) {
  std::istringstream order(variable("TEST_ENGINE"));
  std::string verb;
  order >> verb;
  if (verb == "show") return show(effective_config_json);
  if (verb == "fail") return fail(order);
  if (verb == "wait") return wait_for_signal();
  return verb == "talk" ? talk() : 3;
}
