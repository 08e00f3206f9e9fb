#pragma once

#include <cstdint>
#include <span>

#include "fullshard/base/dtype.h"
#include "fullshard/comm/types.h"

namespace fullshard::comm {

// Element-wise reductions over arrays that one process can see, for collectives and for code that
// reads peers' buffers directly. One pass over memory; parts are combined in the order given; fp16
// and bf16 accumulate in fp32, fp32 in fp32, fp64 in fp64, and each result is rounded once, to
// nearest even. The bits of a result depend on nothing but the inputs: not on the CPU, nor on how a
// range is cut.
//
// kMean multiplies by 1/n where n, the number of parts, is a power of two, and divides otherwise.
// Integers wrap around on overflow; kMean of integers, kSum and kMean of bool throw
// kInvalidArgument. kMin and kMax propagate NaN. A single part is copied bit by bit.
//
// `out` may be exactly one of the parts (same address and type); other overlaps are not allowed.
// All functions may run in any number of threads at once on different outputs.

/// out[i] = op over parts p of parts[p][i], for `count` elements.
void reduce_parts(std::span<const void* const> parts, void* out, std::int64_t count,
                  base::DType dtype, ReduceOp op);

/// As above with an output of its own type and a factor: out[i] = scale * reduction. `out_dtype` is
/// the parts' type, or fp32 for fp16 and bf16 parts. A scale other than 1 needs a floating-point
/// type.
void reduce_parts_to(std::span<const void* const> parts, base::DType dtype, void* out,
                     base::DType out_dtype, std::int64_t count, ReduceOp op, double scale = 1.0);

/// Gradient accumulation: out[i] += scale * reduction, same types as reduce_parts_to. The addition
/// happens in the accumulator's type and is rounded to `out_dtype` once.
void add_reduced_parts(std::span<const void* const> parts, base::DType dtype, void* out,
                       base::DType out_dtype, std::int64_t count, ReduceOp op, double scale = 1.0);

/// How many threads, that of the caller included, share a large reduction in this process. Default:
/// 1. A rank that computes with several threads should add up with as many.
void set_reduction_threads(int threads);

/// Whether `op` is defined for `dtype`.
bool can_reduce(base::DType dtype, ReduceOp op);

}  // namespace fullshard::comm
