// Vectors of floats as the compiler knows them, for kernels that keep blocks of them in registers, and the choice of
// their width by what the processor has.
//
// A kernel is a template on the number of lanes, whose functions are all inlined into one function for each instruction
// set (RH_TARGET_*); SimdLanes() says which one to call.
#ifndef RANKHOUSE_CPU_VECTOR_H_
#define RANKHOUSE_CPU_VECTOR_H_

#include <cstdint>

#include "cpu/simd.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#define RH_TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx2,fma")))
#define RH_TARGET_AVX2 __attribute__((target("avx2,fma")))
#else
#define RH_TARGET_AVX512
#define RH_TARGET_AVX2
#endif

namespace rankhouse {

// How many lanes the kernels shall have: 16 with AVX-512, 8 with AVX2 and FMA, else 4.
inline int SimdLanes() {
#if defined(__x86_64__)
  if (RH_MAX_VECTOR_BITS >= 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return 16;
  if (RH_MAX_VECTOR_BITS >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 8;
#endif
  return 4;
}

template <int kLanes>
struct VectorOf {
  typedef float Type __attribute__((vector_size(kLanes * sizeof(float))));
  // The same at any address of a float.
  typedef float Loose __attribute__((vector_size(kLanes * sizeof(float)), aligned(sizeof(float)), may_alias));
};

template <>
struct VectorOf<1> {
  typedef float Type;
  typedef float Loose;
};

// to[c * to_stride + r] = from[r][c] for 4 rows and 4 columns.
RH_INLINE void Transpose4x4(const float* const* from, int64_t column, float* to, int64_t to_stride) {
#if defined(__x86_64__)
  __m128 row_0 = _mm_loadu_ps(from[0] + column), row_1 = _mm_loadu_ps(from[1] + column);
  __m128 row_2 = _mm_loadu_ps(from[2] + column), row_3 = _mm_loadu_ps(from[3] + column);
  _MM_TRANSPOSE4_PS(row_0, row_1, row_2, row_3);
  _mm_storeu_ps(to, row_0);
  _mm_storeu_ps(to + to_stride, row_1);
  _mm_storeu_ps(to + 2 * to_stride, row_2);
  _mm_storeu_ps(to + 3 * to_stride, row_3);
#else
  for (int64_t c = 0; c < 4; ++c) {
    for (int64_t r = 0; r < 4; ++r) to[c * to_stride + r] = from[r][column + c];
  }
#endif
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_VECTOR_H_
