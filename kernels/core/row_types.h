// The elements of rows (rh_row_type) as float32 and back, on all devices, with the same bits on each.
//
// Conversions have no branches, so that compilers turn loops over them into vectors, and no float32 below the normal
// ones appears in between, so that threads that flush those to zero (TensorFlow's) compute the same.
#ifndef RANKHOUSE_CORE_ROW_TYPES_H_
#define RANKHOUSE_CORE_ROW_TYPES_H_

#include <cstdint>
#include <cstring>

#include "core/hash.h"
#include "core/host_device.h"
#include "rankhouse/rows.h"

// A loop of an RH_SIMD function becomes vectors only if all that it calls is inlined.
#define RH_ROW_INLINE RH_HOST_DEVICE inline __attribute__((always_inline))

namespace rankhouse {

RH_ROW_INLINE uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

RH_ROW_INLINE float FloatOfBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Integers in the order of the floats that have these bits, and back: it is its own inverse. Compilers make vectors of
// the smallest integer of a row, but not of the smallest float.
RH_ROW_INLINE int32_t OrderOf(uint32_t bits) {
  const int32_t signed_bits = static_cast<int32_t>(bits);
  return signed_bits ^ static_cast<int32_t>(static_cast<uint32_t>(signed_bits >> 31) >> 1);
}

RH_ROW_INLINE float FloatOfOrder(int32_t order) {
  return FloatOfBits(static_cast<uint32_t>(OrderOf(static_cast<uint32_t>(order))));
}

// All ones where the condition holds, else zero.
RH_ROW_INLINE uint32_t MaskOf(bool condition) { return 0u - static_cast<uint32_t>(condition); }

// Exact, also for infinities and the numbers below 2^-14; a NaN stays one.
RH_ROW_INLINE float Float16ToFloat(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  // Moved up by 224 exponents and multiplied back, so that the largest exponent becomes float32's largest.
  const uint32_t normal = BitsOfFloat(FloatOfBits((magnitude << 13) + (224u << 23)) * 0x1p-112f);
  // Below 2^-14 the magnitude counts steps of 2^-24, which are the last bits of 0.5.
  const uint32_t small = BitsOfFloat(FloatOfBits(magnitude | (126u << 23)) - 0.5f);
  const uint32_t is_small = MaskOf(magnitude < 0x400u);
  return FloatOfBits(sign | (small & is_small) | (normal & ~is_small));
}

// To the nearest, ties to even; from 65520 on infinite; a NaN keeps its sign and upper bits and becomes a quiet one, as
// the processors' own instructions have it.
RH_ROW_INLINE uint16_t FloatToFloat16(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // The sum with 0.5 rounds at 2^-24.
  const uint32_t small = BitsOfFloat(FloatOfBits(magnitude) + 0.5f) - (126u << 23);
  const uint32_t nan = (0x200u | ((magnitude >> 13) & 0x3ffu)) & MaskOf(magnitude > 0x7f800000u);
  const uint32_t is_small = MaskOf(magnitude < (113u << 23));
  const uint32_t is_big = MaskOf(magnitude >= (143u << 23));
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (small & is_small) | (normal & ~is_small & ~is_big) |
                               ((0x7c00u | nan) & is_big));
}

// Exact.
RH_ROW_INLINE float BFloat16ToFloat(uint16_t bits) { return FloatOfBits(static_cast<uint32_t>(bits) << 16); }

// To the nearest, ties to even; a NaN keeps its sign and upper bits and becomes a quiet one.
RH_ROW_INLINE uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const uint32_t is_nan = MaskOf((bits & 0x7fffffffu) > 0x7f800000u);
  return static_cast<uint16_t>((quiet & is_nan) | (rounded & ~is_nan));
}

// ---------------------------------------------------------------------------------------------------------------------
// Stochastic rounding: what lies between two neighbours goes to the upper one as often as it is near to it, so that a
// table which adds up many small moves keeps their sum on average. Beyond the largest finite number there is no upper
// neighbour, and values round to the nearest, as above.
//
// The results are in the lower 16 bits of 32, as what they are made of: loops over them then become vectors.
// ---------------------------------------------------------------------------------------------------------------------

// What the random bits of a step begin with.
RH_ROW_INLINE uint32_t RoundingSeed(int64_t step) { return static_cast<uint32_t>(HashKey(step) >> 32); }

// The random bits of a value in a step: a function of these alone, so that neither threads, ranks, plans nor devices
// can change a bit. Wellons' lowbias32 (a bijection of 32 bits whose every bit depends on every bit) of both together:
// over the steps a value is given bits as if at random, and so are the values of a step.
RH_ROW_INLINE uint32_t RandomBits(float value, uint32_t seed) {
  uint32_t hash = BitsOfFloat(value) ^ seed;
  hash = (hash ^ hash >> 16) * 0x7feb352du;
  hash = (hash ^ hash >> 15) * 0x846ca68bu;
  return hash ^ hash >> 16;
}

// A NaN becomes a quiet one, as in FloatToFloat16.
RH_ROW_INLINE uint32_t RoundToFloat16(float value, uint32_t random) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t is_last = MaskOf(magnitude >= 0x477fe000u);  // the largest finite number
  const uint32_t added = (0x1000u & is_last) | ((random >> 19) & ~is_last);
  const uint32_t normal = (magnitude - (112u << 23) + added) >> 13;
  // Below 2^-14 in steps of 2^-45, of which the last 21 bits are below the last bit that stays. Of float32's own
  // numbers below the normal ones nothing is left.
  const uint32_t is_small = MaskOf(magnitude < (113u << 23));
  const float fraction = FloatOfBits(magnitude & is_small & MaskOf(magnitude >= (1u << 23)));
  const uint32_t small = (static_cast<uint32_t>(static_cast<int32_t>(fraction * 0x1p45f)) + (random >> 11)) >> 21;
  const uint32_t nan = (0x200u | ((magnitude >> 13) & 0x3ffu)) & MaskOf(magnitude > 0x7f800000u);
  const uint32_t is_big = MaskOf(magnitude >= (143u << 23));
  return ((bits >> 16) & 0x8000u) | (small & is_small) | (normal & ~is_small & ~is_big) | ((0x7c00u | nan) & is_big);
}

RH_ROW_INLINE uint32_t RoundToBFloat16(float value, uint32_t random) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t is_last = MaskOf(magnitude >= 0x7f7f0000u);  // the largest finite number
  const uint32_t rounded = (bits + ((0x8000u & is_last) | ((random >> 16) & ~is_last))) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const uint32_t is_nan = MaskOf(magnitude > 0x7f800000u);
  return (quiet & is_nan) | (rounded & ~is_nan);
}

// One row of each type: row[d] is its element as float32. A GPU reads elements whole, so there their addresses must fit
// their type (that of an int8 row may be any).
struct Float32Row {
  const char* data;
  RH_ROW_INLINE Float32Row(const void* row, int64_t) : data(static_cast<const char*>(row)) {}
  RH_ROW_INLINE float operator[](int64_t d) const {
#if defined(__CUDA_ARCH__)
    return reinterpret_cast<const float*>(data)[d];
#else
    float value;
    memcpy(&value, data + d * sizeof(value), sizeof(value));
    return value;
#endif
  }
};

struct HalfBitsRow {
  const char* data;
  RH_ROW_INLINE HalfBitsRow(const void* row, int64_t) : data(static_cast<const char*>(row)) {}
  RH_ROW_INLINE uint16_t Bits(int64_t d) const {
#if defined(__CUDA_ARCH__)
    return reinterpret_cast<const uint16_t*>(data)[d];
#else
    uint16_t bits;
    memcpy(&bits, data + d * sizeof(bits), sizeof(bits));
    return bits;
#endif
  }
};

struct Float16Row : HalfBitsRow {
  using HalfBitsRow::HalfBitsRow;
  RH_ROW_INLINE float operator[](int64_t d) const { return Float16ToFloat(Bits(d)); }
};

struct BFloat16Row : HalfBitsRow {
  using HalfBitsRow::HalfBitsRow;
  RH_ROW_INLINE float operator[](int64_t d) const { return BFloat16ToFloat(Bits(d)); }
};

struct Int8Row {
  const uint8_t* data;
  float scale;
  float offset;
  RH_ROW_INLINE Int8Row(const void* row, int64_t dim) : data(static_cast<const uint8_t*>(row)) {
    memcpy(&scale, data + dim, sizeof(scale));
    memcpy(&offset, data + dim + sizeof(scale), sizeof(offset));
  }
  // Two roundings: the library is compiled without fused products.
  RH_ROW_INLINE float operator[](int64_t d) const { return static_cast<float>(data[d]) * scale + offset; }
};

// How a row from its least to its largest element becomes an Int8Row.
struct Int8Scale {
  float scale;
  float offset;
  float inverse;
  RH_ROW_INLINE Int8Scale(float least, float most) {
    offset = least + 0.0f;  // never -0, whose order beside 0 differs between devices
    scale = (most - offset) / 255.0f;
    inverse = 255.0f / (most - offset + 1e-8f);
  }
  // False where an element is not finite (a NaN counts as least or largest) or the difference overflows.
  RH_ROW_INLINE bool IsFinite() const {
    return (BitsOfFloat(scale) & 0x7f800000u) != 0x7f800000u && (BitsOfFloat(offset) & 0x7f800000u) != 0x7f800000u;
  }
  // The sum with 2^23 rounds to the nearest whole number, ties to even, and leaves it in the last bits.
  RH_ROW_INLINE uint8_t Quantize(float value) const {
    return static_cast<uint8_t>(BitsOfFloat((value - offset) * inverse + 0x1p23f));
  }
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_ROW_TYPES_H_
