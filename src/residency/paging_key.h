#pragma once

#include <c10/core/DispatchKey.h>

namespace fullshard::residency {

/// The dispatch key that marks paged tensors. It lies above autograd and autocast, nothing in
/// libtorch uses it, and views keep it while results of arithmetic do not.
inline constexpr c10::DispatchKey kPagingKey = c10::DispatchKey::DeferredInit;

}  // namespace fullshard::residency
