// What makes a raw batch a good one.
#ifndef RANKHOUSE_TRANSFORM_RAW_BATCH_H_
#define RANKHOUSE_TRANSFORM_RAW_BATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "rankhouse/transform.h"

namespace rankhouse::transform {

// A categorical feature, as a column of the lengths of its kind.
struct Column {
  std::string name;
  bool is_list = false;
  int64_t feature = 0;  // its place among the categorical features
  int64_t table = 0;    // the number of its table among those of its kind
};

// Throws Error: RH_INVALID_ARGUMENT where the batch is not of these columns or contradicts itself.
void CheckBatch(const rh_raw_batch& batch, int64_t num_floats, const std::vector<Column>& ints,
                const std::vector<Column>& texts);

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_RAW_BATCH_H_
