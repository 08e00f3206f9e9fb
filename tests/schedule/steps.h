#pragma once

#include <sstream>
#include <string>

#include "fullshard/schedule/trace.h"

namespace fullshard::schedule::steps {

/// "f0 f1 r1 b1": forward touches of units 0 and 1, then one of unit 1 that recomputes, then one in
/// backward. "f1+1": by an operator that uses the unit before as well.
inline Trace of(const std::string& text) {
  Trace trace;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t plus = word.find('+');
    const Phase phase = word[0] == 'f'   ? Phase::kForward
                        : word[0] == 'b' ? Phase::kBackward
                                         : Phase::kRecompute;
    trace.add({std::stoi(word.substr(1)), phase,
               plus == std::string::npos ? 0 : std::stoi(word.substr(plus + 1))});
  }
  return trace;
}

/// Unit 0 is the root (embedding and head), units 1 to `blocks` are blocks.
inline Trace gpt_forward(int blocks) {
  Trace trace;
  trace.add({0, Phase::kForward});
  for (int block = 1; block <= blocks; ++block) trace.add({block, Phase::kForward});
  trace.add({0, Phase::kForward});
  return trace;
}

inline Trace gpt(int blocks) {
  Trace trace = gpt_forward(blocks);
  trace.add({0, Phase::kBackward});
  for (int block = blocks; block >= 1; --block) trace.add({block, Phase::kBackward});
  return trace;
}

}  // namespace fullshard::schedule::steps
