// The loops for AVX2 and F16C, by whose flags CMakeLists.txt compiles this file.
#include "cpu/simd.h"

#if defined(__x86_64__) && RH_MAX_VECTOR_BITS >= 256
#include <immintrin.h>

#include "cpu/pool_loops.h"

namespace rankhouse {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kMaxFloatVectors = 8;  // half of the registers
  static constexpr int64_t kMaxVectors = 8;

  RH_INLINE static Vector Zero() { return _mm256_setzero_ps(); }
  RH_INLINE static Vector Broadcast(float value) { return _mm256_set1_ps(value); }
  RH_INLINE static Vector Add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  RH_INLINE static Vector Multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  RH_INLINE static void Store(float* out, Vector value) { _mm256_storeu_ps(out, value); }
  RH_INLINE static void StoreTail(float* out, Vector value, int64_t columns) {
    float all[kLanes];
    _mm256_storeu_ps(all, value);
    for (int64_t c = 0; c < columns; ++c) out[c] = all[c];
  }
  RH_INLINE static void Stream(float* out, Vector value) { _mm256_stream_ps(out, value); }
  RH_INLINE static void EndStream() { _mm_sfence(); }

  template <int32_t kType>
  RH_INLINE static Vector Load(const void* from) {
    if constexpr (kType == RH_FLOAT32) return _mm256_loadu_ps(static_cast<const float*>(from));
    if constexpr (kType == RH_INT8_ROWWISE) return FromBytes(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
    return FromHalves<kType>(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  template <int32_t kType>
  RH_INLINE static Vector LoadTail(const void* from, int64_t columns) {
    alignas(32) char all[kLanes * sizeof(float)] = {};
    const char* bytes = static_cast<const char*>(from);
    for (int64_t b = 0; b < columns * ElementBytes(kType); ++b) all[b] = bytes[b];
    return Load<kType>(all);
  }

 private:
  RH_INLINE static Vector FromBytes(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
  template <int32_t kType>
  RH_INLINE static Vector FromHalves(__m128i halves) {
    if constexpr (kType == RH_FLOAT16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace

const PoolLoops kAvx2PoolLoops = MakePoolLoops<Avx2>();

}  // namespace rankhouse
#endif
