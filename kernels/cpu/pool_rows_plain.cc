// The loops for processors of any kind: vectors of 16 bytes, which every one that matters has.
#include "core/row_types.h"
#include "cpu/pool_loops.h"

namespace rankhouse {
namespace {

struct Plain {
  typedef float Vector __attribute__((vector_size(16)));
  static constexpr int64_t kLanes = 4;
  static constexpr int64_t kMaxFloatVectors = 4;
  static constexpr int64_t kMaxVectors = 4;

  RH_INLINE static Vector Zero() { return Broadcast(0.0f); }
  RH_INLINE static Vector Broadcast(float value) { return Vector{value, value, value, value}; }
  RH_INLINE static Vector Add(Vector a, Vector b) { return a + b; }
  RH_INLINE static Vector Multiply(Vector a, Vector b) { return a * b; }
  RH_INLINE static void Store(float* out, Vector value) { __builtin_memcpy(out, &value, sizeof(value)); }
  RH_INLINE static void StoreTail(float* out, Vector value, int64_t columns) {
    for (int64_t c = 0; c < columns; ++c) out[c] = value[c];
  }
  RH_INLINE static void Stream(float* out, Vector value) { Store(out, value); }
  RH_INLINE static void EndStream() {}

  template <int32_t kType>
  RH_INLINE static Vector Load(const void* from) {
    return LoadTail<kType>(from, kLanes);
  }
  template <int32_t kType>
  RH_INLINE static Vector LoadTail(const void* from, int64_t columns) {
    Vector value = Zero();
    for (int64_t c = 0; c < columns; ++c) {
      if constexpr (kType == RH_FLOAT32) value[c] = Float32Row(from, 0)[c];
      if constexpr (kType == RH_FLOAT16) value[c] = Float16Row(from, 0)[c];
      if constexpr (kType == RH_BFLOAT16) value[c] = BFloat16Row(from, 0)[c];
      if constexpr (kType == RH_INT8_ROWWISE) value[c] = static_cast<float>(static_cast<const uint8_t*>(from)[c]);
    }
    return value;
  }
};

}  // namespace

const PoolLoops kPlainPoolLoops = MakePoolLoops<Plain>();

}  // namespace rankhouse
