// Continuous features: each step in the dtype and order in which NVTabular does it.
#ifndef RANKHOUSE_TRANSFORM_DENSE_H_
#define RANKHOUSE_TRANSFORM_DENSE_H_

#include <cstdint>

#include "transform/feature.h"

namespace rankhouse::transform {

constexpr int64_t kMaxDenseRows = 64;

// Does a feature's steps to n <= kMaxDenseRows values (NaN is missing), each `stride` behind the one before, and writes
// them as far apart.
void ApplySteps(const DenseSteps& steps, const double* values, int64_t n, int64_t stride, float* out);

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_DENSE_H_
