#pragma once

#include <string_view>

namespace fullshard::comm {

/// For which processor a loop was compiled.
enum class VectorInstructions { kPortable, kAvx2, kAvx512 };

/// What kernels of this process use: the best that the processor has, or less where the variable
/// FULLSHARD_CPU_CAPABILITY says `portable` or `avx2`. Found out once. Throws
/// base::Error(kConfiguration) for any other text but `avx512`, and for more than there is.
VectorInstructions vector_instructions();

/// The same without the environment: `wanted` is the variable's text, empty for none.
VectorInstructions choose_vector_instructions(VectorInstructions best, std::string_view wanted);

}  // namespace fullshard::comm
