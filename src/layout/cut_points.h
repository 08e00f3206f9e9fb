#pragma once

#include <cstdint>
#include <span>

#include "fullshard/layout/unit_layout.h"

namespace fullshard::layout {

/// Elements between allowed cuts inside a parameter, lcm(atom, quantum); the parameter's size or
/// more when there is none inside.
std::int64_t cut_step(const ParameterSpec& spec, std::int64_t numel, std::int64_t quantum);

/// The allowed cut nearest to the flat offset `wanted`, the later of two that are equally near.
/// `parameters` lie in a buffer of `flat_size` elements.
std::int64_t nearest_cut(std::span<const PlacedParameter> parameters, std::int64_t flat_size,
                         std::int64_t quantum, double wanted);

}  // namespace fullshard::layout
