#include <cstdio>

#include "cli/bench.h"
#include "cli/command_line.h"
#include "cli/doctor.h"
#include "cli/plan.h"
#include "cli/train.h"
#include "fullshard/base/error.h"
#include "fullshard/base/error_report.h"

namespace {

using namespace fullshard;

int run(const cli::Command& command) {
  if (const auto* show = std::get_if<cli::ShowText>(&command)) {
    std::fputs(show->text.c_str(), stdout);
    return 0;
  }
  if (const auto* step = std::get_if<cli::BenchStepCommand>(&command)) {
    return cli::bench_step(*step);
  }
  if (const auto* measure = std::get_if<cli::MeasureStepCommand>(&command)) {
    return cli::measure_step(*measure);
  }
  if (const auto* collectives = std::get_if<cli::BenchCollectivesCommand>(&command)) {
    return cli::bench_collectives(*collectives);
  }
  if (const auto* measure = std::get_if<cli::MeasureCollectivesCommand>(&command)) {
    return cli::measure_collectives(*measure);
  }
  if (const auto* plan = std::get_if<cli::PlanCommand>(&command)) {
    return cli::plan(*plan);
  }
  if (const auto* trace = std::get_if<cli::DoctorTraceCommand>(&command)) {
    return cli::doctor_trace(*trace);
  }
  return cli::train(std::get<cli::TrainCommand>(command));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(cli::parse_command_line(argc, argv));
  } catch (const base::Error& error) {
    base::report_error(error);
    return base::exit_code(error);
  } catch (const std::exception& error) {
    base::report_error(error);
    return 1;
  }
}
