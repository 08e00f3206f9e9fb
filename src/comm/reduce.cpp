#include "fullshard/comm/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>

#include "comm/crew.h"
#include "comm/half.h"
#include "comm/sums.h"
#include "comm/vector_instructions.h"
#include "fullshard/base/check.h"
#include "fullshard/base/error.h"

namespace fullshard::comm {
namespace {

using base::DType;

// Elements handled at a time: the accumulators of one block stay in the first-level cache. They are
// a local array, so the compiler knows that they alias nothing and vectorizes every loop, while
// `out` may be one of the parts.
constexpr std::int64_t kBlock = 256;

// How far ahead of its use a part of a large reduction is asked for: the processor's own
// prefetching ends with each page of 4 KiB.
constexpr std::size_t kAhead = std::size_t{4} << 10;
constexpr std::size_t kLine = 64;

// Results of at least this many bytes are large: they would not stay in the caches.
constexpr std::size_t kLarge = std::size_t{256} << 10;

template <typename T>
struct Element {
  using Wide = T;  // what sums run in
  [[gnu::always_inline]] static Wide load(T value) { return value; }
  [[gnu::always_inline]] static T store(Wide value) { return value; }
};

template <typename T>
struct HalfElement {
  using Wide = float;
  [[gnu::always_inline]] static float load(T value) { return widen(value); }
  [[gnu::always_inline]] static T store(float value) {
    T out;
    narrow(value, out);
    return out;
  }
};
template <>
struct Element<BFloat16> : HalfElement<BFloat16> {};
template <>
struct Element<Float16> : HalfElement<Float16> {};

struct Sum {
  template <typename Wide>
  [[gnu::always_inline]] static Wide combine(Wide a, Wide b) {
    if constexpr (std::is_integral_v<Wide>) {  // unsigned, where wrapping around is defined
      using Unsigned = std::make_unsigned_t<Wide>;
      return static_cast<Wide>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

struct Min {
  template <typename Wide>
  [[gnu::always_inline]] static Wide combine(Wide a, Wide b) {
    return ((b < a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression): NaN
  }
};

struct Max {
  template <typename Wide>
  [[gnu::always_inline]] static Wide combine(Wide a, Wide b) {
    return ((b > a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression): NaN
  }
};

// What happens to a block of accumulators between the last part and `out`.
struct Finish {
  double divide_by = 1;  // kMean over a number of parts that is not a power of two
  double scale = 1;      // the caller's factor; for other means, 1/n is in here as well
  bool accumulate = false;
  bool prefetch = false;
  bool stream = false;  // past the caches: for results whose place is not in them anyway
};

struct Job {
  std::span<const void* const> parts;
  void* out;
  std::int64_t begin;  // what is to be done of the elements
  std::int64_t end;
  Finish finish;
};

template <typename T>
[[gnu::always_inline]] inline const T* part(const Job& job, std::size_t index, std::int64_t begin) {
  return static_cast<const T*>(job.parts[index]) + begin;
}

template <typename In, typename Op, typename Wide>
[[gnu::always_inline]] inline void combine_block(const Job& job, std::int64_t begin, std::int64_t n,
                                                 Wide* sums) {
  using E = Element<In>;
  const In* a = part<In>(job, 0, begin);
  std::size_t next = 1;
  if (job.parts.size() >= 4) {
    const In* b = part<In>(job, 1, begin);
    const In* c = part<In>(job, 2, begin);
    const In* d = part<In>(job, 3, begin);
    for (std::int64_t i = 0; i < n; ++i) {
      const Wide ab = Op::combine(E::load(a[i]), E::load(b[i]));
      sums[i] = Op::combine(Op::combine(ab, E::load(c[i])), E::load(d[i]));
    }
    next = 4;
  } else if (job.parts.size() >= 2) {
    const In* b = part<In>(job, 1, begin);
    for (std::int64_t i = 0; i < n; ++i) sums[i] = Op::combine(E::load(a[i]), E::load(b[i]));
    next = 2;
  } else {
    for (std::int64_t i = 0; i < n; ++i) sums[i] = E::load(a[i]);
  }
  for (; next < job.parts.size(); ++next) {
    const In* more = part<In>(job, next, begin);
    for (std::int64_t i = 0; i < n; ++i) sums[i] = Op::combine(sums[i], E::load(more[i]));
  }
}

// Past the end of a part nothing is read: a prefetch of what cannot be read does nothing.
template <typename T>
[[gnu::always_inline]] inline void prefetch_block(const Job& job, std::int64_t begin) {
  for (std::size_t index = 0; index < job.parts.size(); ++index) {
    const auto ahead = reinterpret_cast<std::uintptr_t>(part<T>(job, index, begin)) + kAhead;
    for (std::size_t at = 0; at < kBlock * sizeof(T); at += kLine) {
      // An address beyond the array is no pointer into it.
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      __builtin_prefetch(reinterpret_cast<const void*>(ahead + at), /*rw=*/0, /*locality=*/3);
    }
  }
}

// Elements of `out` from `begin` on up to the next line.
template <typename T>
[[gnu::always_inline]] inline std::int64_t up_to_line(const T* out, std::int64_t begin) {
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(out + begin) % kLine;
  return static_cast<std::int64_t>((kLine - beyond) % kLine / sizeof(T));
}

// Writing past the caches spares the memory from reading what is going to be overwritten. `to` is
// the beginning of a line, unless there is less than one. Stores of a whole line at once, where the
// processor has them, are the quickest.
template <typename T>
[[gnu::always_inline]] inline void stream_block(const T* from, T* to, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__clang__)
  using Line = T __attribute__((vector_size(kLine)));
  constexpr std::int64_t kLane = kLine / sizeof(T);
  for (; i + kLane <= n; i += kLane) {
    Line line;
    std::memcpy(&line, from + i, kLine);
    __builtin_nontemporal_store(line, reinterpret_cast<Line*>(to + i));
  }
#elif defined(__x86_64__)
  constexpr std::int64_t kLane = sizeof(__m128i) / sizeof(T);
  for (; n >= static_cast<std::int64_t>(kLine / sizeof(T)) && i + kLane <= n; i += kLane) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
#endif
  std::copy_n(from + i, n - i, to + i);
}

template <typename Out, typename Wide>
[[gnu::always_inline]] inline void finish_block(const Finish& finish, std::int64_t n, Wide* sums,
                                                Out* out) {
  using E = Element<Out>;
  if constexpr (std::is_floating_point_v<Wide>) {
    if (finish.divide_by != 1) {
      const Wide divisor = static_cast<Wide>(finish.divide_by);
      for (std::int64_t i = 0; i < n; ++i) sums[i] /= divisor;
    }
    if (finish.scale != 1) {
      const Wide scale = static_cast<Wide>(finish.scale);
      for (std::int64_t i = 0; i < n; ++i) sums[i] *= scale;
    }
  }
  if (finish.accumulate) {
    for (std::int64_t i = 0; i < n; ++i) sums[i] = Sum::combine(E::load(out[i]), sums[i]);
  }
  if constexpr (std::is_same_v<Out, Wide>) {
    if (finish.stream) return stream_block(sums, out, n);
  }
  for (std::int64_t i = 0; i < n; ++i) out[i] = E::store(sums[i]);
}

template <typename In, typename Out, typename Op>
[[gnu::always_inline]] inline void reduce_all(const Job& job) {
  using Wide = typename Element<In>::Wide;
  static_assert(std::is_same_v<Wide, typename Element<Out>::Wide>);
  alignas(kLine) std::array<Wide, kBlock> sums;
  Out* out = static_cast<Out*>(job.out);
  const std::int64_t first = job.finish.stream ? up_to_line(out, job.begin) : 0;
  std::int64_t n = 0;
  for (std::int64_t begin = job.begin; begin < job.end; begin += n) {
    n = std::min(begin == job.begin && first > 0 ? first : kBlock, job.end - begin);
    if (job.finish.prefetch) prefetch_block<In>(job, begin);
    combine_block<In, Op>(job, begin, n, sums.data());
    finish_block(job.finish, n, sums.data(), out + begin);
  }
#if defined(__x86_64__)
  if (job.finish.stream) _mm_sfence();  // a later release orders ordinary stores only
#endif
}

// One body, compiled for several instruction sets. None of them changes a rounding, as nothing is
// contracted, so all give the same bits.
#if defined(__x86_64__)
template <typename In, typename Out, typename Op>
[[gnu::target("avx2"), gnu::noinline]] void reduce_avx2(const Job& job) {
  reduce_all<In, Out, Op>(job);
}

// Without the attribute clang stays at 256 bits, for the sake of processors that slow down.
#if defined(__clang__)
#define FULLSHARD_512_BITS [[clang::min_vector_width(512)]]
#else
#define FULLSHARD_512_BITS
#endif
template <typename In, typename Out, typename Op>
FULLSHARD_512_BITS [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::noinline]] void
reduce_avx512(const Job& job) {
  reduce_all<In, Out, Op>(job);
}
#undef FULLSHARD_512_BITS
#endif

template <typename In, typename Out, typename Op>
void reduce_with(const Job& job) {
#if defined(__x86_64__)
  switch (vector_instructions()) {
    case VectorInstructions::kAvx512: return reduce_avx512<In, Out, Op>(job);
    case VectorInstructions::kAvx2: return reduce_avx2<In, Out, Op>(job);
    case VectorInstructions::kPortable: break;
  }
#endif
  reduce_all<In, Out, Op>(job);
}

template <typename In, typename Out>
void reduce_by(ReduceOp op, const Job& job) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean: return reduce_with<In, Out, Sum>(job);
    case ReduceOp::kMin: return reduce_with<In, Out, Min>(job);
    case ReduceOp::kMax: return reduce_with<In, Out, Max>(job);
  }
}

template <typename T>
void reduce_half(base::DType out_dtype, ReduceOp op, const Job& job) {
  if (out_dtype == DType::kFloat32) return reduce_by<T, float>(op, job);
  reduce_by<T, T>(op, job);
}

void dispatch(DType dtype, DType out_dtype, ReduceOp op, const Job& job) {
  switch (dtype) {
    case DType::kFloat32: return reduce_by<float, float>(op, job);
    case DType::kFloat64: return reduce_by<double, double>(op, job);
    case DType::kBFloat16: return reduce_half<BFloat16>(out_dtype, op, job);
    case DType::kFloat16: return reduce_half<Float16>(out_dtype, op, job);
    case DType::kInt8: return reduce_by<std::int8_t, std::int8_t>(op, job);
    case DType::kUInt8:
    case DType::kBool: return reduce_by<std::uint8_t, std::uint8_t>(op, job);
    case DType::kInt16: return reduce_by<std::int16_t, std::int16_t>(op, job);
    case DType::kInt32: return reduce_by<std::int32_t, std::int32_t>(op, job);
    case DType::kInt64: return reduce_by<std::int64_t, std::int64_t>(op, job);
  }
}

bool is_floating(DType dtype) {
  return is_half(dtype) || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

void check_types(DType dtype, DType out_dtype, ReduceOp op, double scale) {
  using base::Error;
  using base::ErrorCode;
  if (!can_reduce(dtype, op)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("elements of type {} have no {}; {}", base::to_string(dtype),
                            op == ReduceOp::kMean ? "mean" : "sum",
                            dtype == DType::kBool ? "use max for 'any' and min for 'all'"
                                                  : "use a sum, or convert to a floating type"));
  }
  if (out_dtype != dtype && !(is_half(dtype) && out_dtype == DType::kFloat32)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("cannot reduce {} into {}: the output is of the same type, or float32 for "
                    "float16 and bfloat16",
                    base::to_string(dtype), base::to_string(out_dtype)));
  }
  if (scale != 1 && !is_floating(dtype)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a reduction of {} cannot be scaled by {}: only floating types can",
                            base::to_string(dtype), scale));
  }
}

Finish make_finish(ReduceOp op, std::size_t parts, double scale, bool accumulate) {
  Finish finish{.scale = scale, .accumulate = accumulate};
  if (op == ReduceOp::kMean) {
    const double n = static_cast<double>(parts);
    if (std::has_single_bit(parts)) {
      finish.scale /= n;
    } else {
      finish.divide_by = n;
    }
  }
  return finish;
}

std::atomic<int> reduction_threads = 1;

// A thread more pays from this many bytes of results on.
constexpr std::size_t kBytesAThread = std::size_t{512} << 10;

int threads_for(std::size_t bytes) {
  const int most = reduction_threads.load(std::memory_order_relaxed);
  return std::clamp(static_cast<int>(std::min(bytes / kBytesAThread, std::size_t{1024})), 1, most);
}

struct Helpers {
  std::shared_ptr<Crew> crew;
  int size = 0;
  pid_t process = getpid();
  Helpers* before = nullptr;
};

// At least so many. A smaller crew ends with its last caller. The last one is never ended, and in a
// child of fork() that of the parent is left alone: there is nothing to join there.
std::shared_ptr<Crew> crew(int helpers) {
  static std::mutex mutex;
  static Helpers* current = new Helpers;
  const std::lock_guard lock(mutex);
  if (current->process != getpid()) current = new Helpers{.before = current};
  if (current->size < helpers) {
    current->crew = std::make_shared<Crew>(helpers);
    current->size = helpers;
  }
  return current->crew;
}

void reduce(std::span<const void* const> parts, DType dtype, void* out, DType out_dtype,
            std::int64_t count, ReduceOp op, double scale, bool accumulate) {
  FULLSHARD_CHECK(!parts.empty());
  FULLSHARD_CHECK_LE(0, count);
  check_types(dtype, out_dtype, op, scale);
  if (parts.size() == 1 && dtype == out_dtype && scale == 1 && !accumulate) {
    // Bit by bit: through the accumulators a signalling NaN would change.
    if (parts[0] != out && count > 0) {
      std::memcpy(out, parts[0], static_cast<std::size_t>(count) * base::size_of(dtype));
    }
    return;
  }
  Finish finish = make_finish(op, parts.size(), scale, accumulate);
  finish.prefetch = static_cast<std::size_t>(count) * base::size_of(out_dtype) >= kLarge;
  finish.stream = finish.prefetch && !accumulate &&
                  std::find(parts.begin(), parts.end(), out) == parts.end() &&
                  reinterpret_cast<std::uintptr_t>(out) % base::size_of(out_dtype) == 0;
  const int threads = threads_for(static_cast<std::size_t>(count) * base::size_of(out_dtype));
  if (threads == 1) return dispatch(dtype, out_dtype, op, {parts, out, 0, count, finish});
  const std::int64_t each = (count / threads + kBlock) / kBlock * kBlock;
  const auto do_part = [&](int thread) {
    const std::int64_t begin = std::min(count, thread * each);
    dispatch(dtype, out_dtype, op, {parts, out, begin, std::min(count, begin + each), finish});
  };
  crew(threads - 1)->run(threads, [&do_part](int thread) { do_part(thread); });
}

}  // namespace

void set_reduction_threads(int threads) {
  FULLSHARD_CHECK_LE(1, threads);
  reduction_threads = threads;
}

bool can_reduce(DType dtype, ReduceOp op) {
  if (dtype == DType::kBool) return op == ReduceOp::kMin || op == ReduceOp::kMax;
  return op != ReduceOp::kMean || is_floating(dtype);
}

void reduce_parts(std::span<const void* const> parts, void* out, std::int64_t count, DType dtype,
                  ReduceOp op) {
  reduce(parts, dtype, out, dtype, count, op, 1.0, false);
}

void reduce_parts_to(std::span<const void* const> parts, DType dtype, void* out, DType out_dtype,
                     std::int64_t count, ReduceOp op, double scale) {
  reduce(parts, dtype, out, out_dtype, count, op, scale, false);
}

void add_reduced_parts(std::span<const void* const> parts, DType dtype, void* out, DType out_dtype,
                       std::int64_t count, ReduceOp op, double scale) {
  reduce(parts, dtype, out, out_dtype, count, op, scale, true);
}

}  // namespace fullshard::comm
