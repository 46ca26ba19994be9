// Conversions without branches (core/row_types.h), so that the loops become vectors.
#include "cpu/narrow_rows.h"

namespace rankhouse {
namespace {

constexpr int64_t kBlock = 16;

typedef uint32_t Words __attribute__((vector_size(kBlock * sizeof(uint32_t))));
typedef uint16_t Halves __attribute__((vector_size(kBlock * sizeof(uint16_t))));

// Blocks are rounded as 32 bits and only then narrowed: compilers that do both at once take half the numbers one by
// one.
template <uint32_t (*kRound)(float value, uint32_t random)>
RH_INLINE void RoundBy(uint32_t seed, const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  int64_t d = 0;
  for (; d + kBlock <= n; d += kBlock) {
    uint32_t rounded[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) rounded[i] = kRound(from[d + i], RandomBits(from[d + i], seed));
    Words words;
    __builtin_memcpy(&words, rounded, sizeof(words));
    const Halves halves = __builtin_convertvector(words, Halves);
    __builtin_memcpy(to + d, &halves, sizeof(halves));
  }
  for (; d < n; ++d) to[d] = static_cast<uint16_t>(kRound(from[d], RandomBits(from[d], seed)));
}

// A block is written as one vector: the rules read it as one, and would wait for parts of it to reach the cache.
RH_INLINE Words WidenBlock(const BFloat16Row&, const uint16_t* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return __builtin_convertvector(halves, Words) << 16;
}

RH_INLINE Words WidenBlock(const Float16Row& row, const uint16_t*) {
  float block[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) block[i] = row[i];
  Words words;
  __builtin_memcpy(&words, block, sizeof(words));
  return words;
}

template <typename Row>
RH_INLINE void WidenBy(const uint16_t* from, int64_t n, float* __restrict to) {
  int64_t d = 0;
  for (; d + kBlock <= n; d += kBlock) {
    const Words words = WidenBlock(Row(from + d, kBlock), from + d);
    __builtin_memcpy(to + d, &words, sizeof(words));
  }
  const Row row(from, n);
  for (; d < n; ++d) to[d] = row[d];
}

}  // namespace

RH_SIMD void WidenColumns(int32_t type, const uint16_t* from, int64_t n, float* to) {
  type == RH_FLOAT16 ? WidenBy<Float16Row>(from, n, to) : WidenBy<BFloat16Row>(from, n, to);
}

RH_SIMD void RoundColumns(int32_t type, uint32_t seed, const float* from, int64_t n, uint16_t* to) {
  type == RH_FLOAT16 ? RoundBy<RoundToFloat16>(seed, from, n, to) : RoundBy<RoundToBFloat16>(seed, from, n, to);
}

}  // namespace rankhouse
