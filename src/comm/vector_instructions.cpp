#include "comm/vector_instructions.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "fullshard/base/error.h"

namespace fullshard::comm {
namespace {

constexpr const char* kVariable = "FULLSHARD_CPU_CAPABILITY";
constexpr std::array<std::string_view, 3> kNames = {"portable", "avx2", "avx512"};

VectorInstructions best_here() {
#if defined(__x86_64__)
  const bool all_of_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (all_of_512) return VectorInstructions::kAvx512;
  if (__builtin_cpu_supports("avx2")) return VectorInstructions::kAvx2;
#endif
  return VectorInstructions::kPortable;
}

}  // namespace

VectorInstructions choose_vector_instructions(VectorInstructions best, std::string_view wanted) {
  if (wanted.empty()) return best;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == wanted && i <= static_cast<std::size_t>(best)) {
      return static_cast<VectorInstructions>(i);
    }
  }
  throw base::Error(base::ErrorCode::kConfiguration,
                    fmt::format("{}: found '{}'; expected 'portable', 'avx2' or 'avx512', and this "
                                "processor has '{}' at most",
                                kVariable, wanted, kNames[static_cast<std::size_t>(best)]));
}

VectorInstructions vector_instructions() {
  static const VectorInstructions chosen = [] {
    const char* wanted = std::getenv(kVariable);
    return choose_vector_instructions(best_here(), wanted == nullptr ? "" : wanted);
  }();
  return chosen;
}

}  // namespace fullshard::comm
