#include "core/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/status.h"
#include "rankhouse/rows.h"

namespace rankhouse {

int64_t CheckRows(const float* rows, int64_t num_rows, int64_t dim, int32_t type, int64_t stride,
                  const void* quantized) {
  Require(num_rows >= 0 && dim >= 1 && dim <= std::numeric_limits<int32_t>::max(), "rows have shape [", num_rows, ", ",
          dim, "]: expected rows >= 0 and a width of 1 to 2^31 - 1");
  const int64_t row_bytes = rh_row_bytes(type, dim);
  Require(row_bytes > 0, "row type ", type, ": expected 0 (float32), 1 (float16), 2 (bfloat16) or 3 (row-wise int8)");
  Require(stride == 0 || stride >= row_bytes, "stride is ", stride, " bytes: expected 0 (packed) or at least the ",
          row_bytes, " bytes of a row");
  Require(num_rows == 0 || (rows != nullptr && quantized != nullptr), "rows or quantized is NULL, but there are ",
          num_rows, " rows");
  return stride == 0 ? row_bytes : stride;
}

void ThrowInt8Fault(const float* row, int64_t r, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) {
    Require(std::isfinite(row[d]), "row ", r, ", column ", d, " is ", row[d],
            ": row-wise int8 takes finite numbers only");
  }
  const auto [least, most] = std::minmax_element(row, row + dim);
  throw Error(RH_INVALID_ARGUMENT,
              StrCat("row ", r, " runs from ", *least, " (column ", least - row, ") to ", *most, " (column ",
                     most - row, "): row-wise int8 needs a difference that float32 can hold"));
}

}  // namespace rankhouse

int64_t rh_row_bytes(int32_t type, int64_t dim) {
  if (dim < 1 || dim > std::numeric_limits<int32_t>::max()) return 0;
  switch (type) {
    case RH_FLOAT32:
      return 4 * dim;
    case RH_FLOAT16:
    case RH_BFLOAT16:
      return 2 * dim;
    case RH_INT8_ROWWISE:
      return dim + 8;
    default:
      return 0;
  }
}
