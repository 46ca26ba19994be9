// Conversions without branches (core/row_types.h), so that the loops become vectors.
#include "cpu/narrow_rows.h"

namespace rankhouse {
namespace {

RH_INLINE void Store(uint16_t* __restrict to, int64_t d, uint16_t bits) {
  __builtin_memcpy(to + d, &bits, sizeof(bits));
}

}  // namespace

RH_SIMD void WidenColumns(int32_t type, const uint16_t* from, int64_t n, float* __restrict to) {
  if (type == RH_FLOAT16) {
    const Float16Row row(from, n);
    for (int64_t d = 0; d < n; ++d) to[d] = row[d];
  } else {
    const BFloat16Row row(from, n);
    for (int64_t d = 0; d < n; ++d) to[d] = row[d];
  }
}

RH_SIMD void RoundColumns(int32_t type, uint32_t seed, const float* from, int64_t n, uint16_t* __restrict to) {
  if (type == RH_FLOAT16) {
    for (int64_t d = 0; d < n; ++d) Store(to, d, RoundToFloat16(from[d], RandomBits(from[d], seed)));
  } else {
    for (int64_t d = 0; d < n; ++d) Store(to, d, RoundToBFloat16(from[d], RandomBits(from[d], seed)));
  }
}

}  // namespace rankhouse
