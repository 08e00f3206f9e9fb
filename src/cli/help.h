#pragma once

#include <string>

namespace fullshard::cli {

std::string main_help();
std::string train_help();
std::string bench_help();
std::string bench_step_help();
std::string bench_collectives_help();
std::string plan_help();
std::string doctor_help();
std::string doctor_trace_help();
std::string version_line();

}  // namespace fullshard::cli
