// Formats of rows.
#include "rankhouse/rows.h"

int64_t rh_row_bytes(int32_t type, int64_t dim) {
  if (dim < 1) return 0;
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
