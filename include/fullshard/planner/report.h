#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fullshard/planner/input.h"
#include "fullshard/planner/plan.h"

namespace fullshard::planner {

/// A plan for people: what it is about and what was assumed, at most `rows` ways to train, why the
/// first, what takes memory and time, granularities, heads, and how to run it.
std::string to_text(const SettledJob& settled, const Plan& plan, int rows);

/// All of it, as JSON; sizes in bytes, times in seconds.
std::string to_json(const SettledJob& settled, const Plan& plan);

/// How a way to train is told to `fullshard train`.
struct TrainSettings {
  std::vector<std::pair<std::string, std::string>> fields;  ///< "section.field" and its value
  std::vector<std::string> missing;                         ///< what no field says, in words
};
TrainSettings train_settings(const Job& job, const Candidate& candidate);

/// The command that trains so: alone on one host, under torchrun on several.
std::string train_command(const Job& job, const TrainSettings& settings);

/// The same choice in a program of one's own: C++ that makes `options` and `mesh`.
std::string cpp_options(const Job& job, const Candidate& candidate);

/// A rule as C++ writes it.
std::string cpp_rule(const AtomRule& rule);

}  // namespace fullshard::planner
