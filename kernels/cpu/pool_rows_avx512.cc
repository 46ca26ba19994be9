// The loops for AVX-512 (F, BW, DQ, VL), by whose flags CMakeLists.txt compiles this file.
#include "cpu/simd.h"

#if defined(__x86_64__) && RH_MAX_VECTOR_BITS >= 512
#include <immintrin.h>

#include "cpu/pool_loops.h"

namespace rankhouse {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr int64_t kLanes = 16;
  static constexpr int64_t kMaxFloatVectors = 16;  // half of the registers
  static constexpr int64_t kMaxVectors = 8;

  RH_INLINE static Vector Zero() { return _mm512_setzero_ps(); }
  RH_INLINE static Vector Broadcast(float value) { return _mm512_set1_ps(value); }
  RH_INLINE static Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  RH_INLINE static Vector Multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  RH_INLINE static void Store(float* out, Vector value) { _mm512_storeu_ps(out, value); }
  RH_INLINE static void StoreTail(float* out, Vector value, int64_t columns) {
    _mm512_mask_storeu_ps(out, Mask(columns), value);
  }
  RH_INLINE static void Stream(float* out, Vector value) { _mm512_stream_ps(out, value); }
  RH_INLINE static void EndStream() { _mm_sfence(); }

  template <int32_t kType>
  RH_INLINE static Vector Load(const void* from) {
    if constexpr (kType == RH_FLOAT32) return _mm512_loadu_ps(from);
    if constexpr (kType == RH_INT8_ROWWISE) return FromBytes(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    return FromHalves<kType>(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  template <int32_t kType>
  RH_INLINE static Vector LoadTail(const void* from, int64_t columns) {
    if constexpr (kType == RH_FLOAT32) return _mm512_maskz_loadu_ps(Mask(columns), from);
    if constexpr (kType == RH_INT8_ROWWISE) return FromBytes(_mm_maskz_loadu_epi8(Mask(columns), from));
    return FromHalves<kType>(_mm256_maskz_loadu_epi16(Mask(columns), from));
  }

 private:
  RH_INLINE static __mmask16 Mask(int64_t columns) { return static_cast<__mmask16>((uint32_t{1} << columns) - 1); }
  RH_INLINE static Vector FromBytes(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }
  template <int32_t kType>
  RH_INLINE static Vector FromHalves(__m256i halves) {
    if constexpr (kType == RH_FLOAT16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace

const PoolLoops kAvx512PoolLoops = MakePoolLoops<Avx512>();

}  // namespace rankhouse
#endif
