// The checks of row conversions, which all devices share.
#ifndef RANKHOUSE_CORE_ROWS_H_
#define RANKHOUSE_CORE_ROWS_H_

#include <cstdint>

namespace rankhouse {

// Checks the arguments of a conversion and returns its stride in bytes. Throws Error.
int64_t CheckRows(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                  const void* quantized);

// Throws the Error of a row [dim], in host memory, that has no RH_INT8_ROWWISE form; `r` is its number.
[[noreturn]] void ThrowInt8Fault(const float* row, int64_t r, int64_t dim);

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_ROWS_H_
