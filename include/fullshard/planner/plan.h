#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fullshard/planner/assessment.h"
#include "fullshard/planner/heads.h"

namespace fullshard::planner {

/// A change of the job, and what the least that it then needs is.
struct Remedy {
  std::string change;           ///< in words: "bf16 with fp32 masters"
  std::int64_t host_bytes = 0;  ///< of the way to train that needs least
  bool fits = false;
};

/// All ways to train that were considered, and which one to take.
struct Plan {
  Job job;
  /// The chosen one first, where one fits; then those that fit, quickest first; then those that do
  /// not, smallest first.
  std::vector<Assessment> ways;
  /// The best of each strategy, with and without computing blocks again; in the same order.
  std::vector<Assessment> of_strategies;
  std::vector<std::string> reasons;  ///< why the chosen one, in sentences
  HeadProposal heads;                ///< for the shard group of the first way
  Assessment with_heads;             ///< the first way, so divided
  std::vector<Remedy> remedies;      ///< where nothing fits; those that fit first

  bool fits() const { return ways.front().fits; }
  const Assessment& best() const { return ways.front(); }  ///< or the smallest, where nothing fits

  /// The best of each size of units, all else but the prefetch as in best(): in the order of
  /// candidates().
  std::vector<Assessment> granularities() const;
};

/// Times within this of each other are equal for this model, and so is memory within the other.
inline constexpr double kSameTime = 1.01;
inline constexpr double kSameMemory = 1.1;

/// Assesses every candidate. Chosen is, of those that fit and are as quick as the quickest, of
/// those the ones that need as little memory as the smallest, the simplest. Throws
/// base::Error(kUsage) where the job cannot be used, or `choices` leave nothing.
Plan make_plan(const Job& job, const Choices& choices);

/// What takes the memory and what would help, for an error where nothing fits.
std::string why_nothing_fits(const Plan& plan);

}  // namespace fullshard::planner
