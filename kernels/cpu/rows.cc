// Conversion of rows between float32 and the other formats, on the CPU.
//
// A thread owns a range of rows and reads and writes each once, in order. Every element depends on its row alone, so
// threads cannot change a bit. Bytes moved: see rows.h.
#include "rankhouse/rows.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "core/row_types.h"
#include "core/rows.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

constexpr int64_t kNoRow = std::numeric_limits<int64_t>::max();

template <typename Value>
RH_INLINE void Store(char* to, int64_t index, Value value) {
  std::memcpy(to + index * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
}

// False where the row cannot be quantized (ThrowInt8Fault says why).
RH_INLINE bool QuantizeInt8Row(const char* __restrict from, int64_t dim, char* __restrict to) {
  const Float32Row row(from, dim);
  int32_t least = std::numeric_limits<int32_t>::max(), most = std::numeric_limits<int32_t>::min();
  for (int64_t d = 0; d < dim; ++d) {
    const int32_t order = OrderOf(BitsOfFloat(row[d]));
    least = std::min(least, order);
    most = std::max(most, order);
  }
  const Int8Scale scale(FloatOfOrder(least), FloatOfOrder(most));
  if (!scale.IsFinite()) return false;
  for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<char>(scale.Quantize(row[d]));
  std::memcpy(to + dim, &scale.scale, sizeof(float));
  std::memcpy(to + dim + sizeof(float), &scale.offset, sizeof(float));
  return true;
}

// Returns the first row that cannot be quantized, or kNoRow.
RH_SIMD int64_t QuantizeRange(const char* rows, int64_t begin, int64_t end, int64_t dim, int32_t type, int64_t stride,
                              char* quantized) {
  for (int64_t r = begin; r < end; ++r) {
    const char* __restrict from = rows + r * dim * static_cast<int64_t>(sizeof(float));
    char* __restrict to = quantized + r * stride;
    const Float32Row row(from, dim);
    switch (type) {
      case RH_FLOAT16:
        for (int64_t d = 0; d < dim; ++d) Store(to, d, FloatToFloat16(row[d]));
        break;
      case RH_BFLOAT16:
        for (int64_t d = 0; d < dim; ++d) Store(to, d, FloatToBFloat16(row[d]));
        break;
      case RH_INT8_ROWWISE:
        if (!QuantizeInt8Row(from, dim, to)) return r;
        break;
      default:
        std::memcpy(to, from, dim * sizeof(float));
    }
  }
  return kNoRow;
}

template <typename Row>
RH_INLINE void DequantizeRow(const char* __restrict from, int64_t dim, char* __restrict to) {
  const Row row(from, dim);
  for (int64_t d = 0; d < dim; ++d) Store(to, d, row[d]);
}

RH_SIMD void DequantizeRange(const char* quantized, int64_t begin, int64_t end, int64_t dim, int32_t type,
                             int64_t stride, char* rows) {
  for (int64_t r = begin; r < end; ++r) {
    const char* from = quantized + r * stride;
    char* to = rows + r * dim * static_cast<int64_t>(sizeof(float));
    switch (type) {
      case RH_FLOAT16:
        DequantizeRow<Float16Row>(from, dim, to);
        break;
      case RH_BFLOAT16:
        DequantizeRow<BFloat16Row>(from, dim, to);
        break;
      case RH_INT8_ROWWISE:
        DequantizeRow<Int8Row>(from, dim, to);
        break;
      default:
        std::memcpy(to, from, dim * sizeof(float));
    }
  }
}

// About how many cycles a row takes: it is read from memory and written there.
int64_t CostOfRow(int64_t dim) { return 8 + 2 * dim; }

void QuantizeRows(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride, void* quantized,
                  const rh_executor* executor) {
  stride = CheckRows(rows, num_rows, dim, type, stride, quantized);
  std::atomic<int64_t> first_bad{kNoRow};
  ParallelFor(executor, num_rows, CostOfRow(dim), [&](int64_t begin, int64_t end) {
    const int64_t bad = QuantizeRange(reinterpret_cast<const char*>(rows), begin, end, dim, type, stride,
                                      static_cast<char*>(quantized));
    int64_t seen = first_bad.load(std::memory_order_relaxed);
    while (bad < seen && !first_bad.compare_exchange_weak(seen, bad, std::memory_order_relaxed)) {
    }
  });
  if (first_bad != kNoRow) ThrowInt8Fault(rows + first_bad * dim, first_bad, dim);
}

void DequantizeRows(const void* quantized, int64_t num_rows, int64_t dim, int32_t type, int64_t stride, float* rows,
                    const rh_executor* executor) {
  stride = CheckRows(rows, num_rows, dim, type, stride, quantized);
  ParallelFor(executor, num_rows, CostOfRow(dim), [&](int64_t begin, int64_t end) {
    DequantizeRange(static_cast<const char*>(quantized), begin, end, dim, type, stride, reinterpret_cast<char*>(rows));
  });
}

}  // namespace
}  // namespace rankhouse

int rh_quantize_rows(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride, void* quantized,
                     const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::QuantizeRows(rows, num_rows, dim, type, stride, quantized, executor); });
}

int rh_dequantize_rows(const void* quantized, int64_t num_rows, int64_t dim, int32_t type, int64_t stride, float* rows,
                       const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::DequantizeRows(quantized, num_rows, dim, type, stride, rows, executor); });
}
