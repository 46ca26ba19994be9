// Rows of 16 bits on their way to an update and back: float16 and bfloat16.
#ifndef RANKHOUSE_CPU_NARROW_ROWS_H_
#define RANKHOUSE_CPU_NARROW_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "core/row_types.h"
#include "cpu/simd.h"
#include "rankhouse/optimizers.h"

namespace rankhouse {

// Writes n columns of type RH_FLOAT16 or RH_BFLOAT16 as float32.
void WidenColumns(int32_t type, const uint16_t* from, int64_t n, float* to);

// Rounds n columns stochastically, with the random bits of a step (RoundingSeed).
void RoundColumns(int32_t type, uint32_t seed, const float* from, int64_t n, uint16_t* to);

// The weights of a row as an update reads and writes them, part by part.
//
// A float32 row (!kNarrow) is one part, and lies in the table. Of other rows Load widens some columns into a buffer,
// and Store rounds them back: conversions are called once a part, so that the rules' loops are there for both kinds of
// rows and not for each type.
template <bool kNarrow>
class Weights;

template <>
class Weights<false> {
 public:
  RH_INLINE Weights(const rh_trained_table& table, int64_t row)
      : data_(static_cast<float*>(table.rows) + row * table.dim), dim_(table.dim) {}
  RH_INLINE int64_t Size(int64_t) const { return dim_; }
  RH_INLINE float* Load(int64_t, int64_t) { return data_; }
  RH_INLINE void Store(int64_t, int64_t, uint32_t) {}

 private:
  float* data_;
  int64_t dim_;
};

template <>
class Weights<true> {
 public:
  RH_INLINE Weights(const rh_trained_table& table, int64_t row)
      : data_(static_cast<uint16_t*>(table.rows) + row * table.dim), dim_(table.dim), type_(table.type) {}
  // How many columns the part has that begins at column `first`.
  RH_INLINE int64_t Size(int64_t first) const { return std::min(dim_ - first, kMaxColumns); }
  RH_INLINE float* Load(int64_t first, int64_t n) {
    WidenColumns(type_, data_ + first, n, buffer_);
    return buffer_;
  }
  RH_INLINE void Store(int64_t first, int64_t n, uint32_t seed) {
    RoundColumns(type_, seed, buffer_, n, data_ + first);
  }

 private:
  static constexpr int64_t kMaxColumns = 256;

  uint16_t* data_;
  int64_t dim_;
  int32_t type_;
  alignas(64) float buffer_[kMaxColumns];
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_NARROW_ROWS_H_
