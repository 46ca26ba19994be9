// The sum of the squares of gradients on the CPU. A thread owns a range of chunks.
#include "core/squared_norm.h"

#include <algorithm>

#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

// values [n] -> the sum of their squares.
RH_SIMD double AddUpSquares(const float* values, int64_t n) {
  double sums[kNormLanes] = {};
  int64_t at = 0;
  for (; at + kNormLanes <= n; at += kNormLanes) {
    for (int64_t l = 0; l < kNormLanes; ++l) sums[l] += static_cast<double>(values[at + l]) * values[at + l];
  }
  for (int64_t l = 0; at + l < n; ++l) sums[l] += static_cast<double>(values[at + l]) * values[at + l];
  for (int64_t width = kNormLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) sums[l] += sums[l + width];
  }
  return sums[0];
}

double SquaredNorm(const float* values, int64_t n, const rh_executor* executor) {
  double sums[kNormChunks];
  const int64_t length = NormChunkLength(n);
  ParallelFor(executor, kNormChunks, 20 + length, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = std::min(n, chunk * length);
      sums[chunk] = AddUpSquares(values + first, std::min(length, n - first));
    }
  });
  double sum = 0.0;
  for (const double part : sums) sum += part;
  return sum;
}

void CheckGradients(const rh_sparse_gradient* gradients, const int64_t* dims, int32_t num_tables,
                    const double* squared_norm) {
  Require(num_tables >= 0, "num_tables is ", num_tables, ": expected >= 0");
  Require(squared_norm != nullptr, "squared_norm is NULL");
  Require(num_tables == 0 || (gradients != nullptr && dims != nullptr), "gradients or dims is NULL");
  for (int32_t t = 0; t < num_tables; ++t) {
    Require(dims[t] >= 1 && gradients[t].num_rows >= 0, "the gradient of table ", t, " has shape [",
            gradients[t].num_rows, ", ", dims[t], "]: expected rows >= 0 and a width >= 1");
    Require(gradients[t].num_rows == 0 || gradients[t].rows != nullptr, "the gradient of table ", t, " has NULL rows");
  }
}

}  // namespace
}  // namespace rankhouse

int rh_squared_norm(const rh_sparse_gradient* gradients, const int64_t* dims, int32_t num_tables, double* squared_norm,
                    const rh_executor* executor) {
  return rankhouse::Guard([&] {
    rankhouse::CheckGradients(gradients, dims, num_tables, squared_norm);
    double sum = 0.0;
    for (int32_t t = 0; t < num_tables; ++t) {
      sum += rankhouse::SquaredNorm(gradients[t].rows, gradients[t].num_rows * dims[t], executor);
    }
    *squared_norm = sum;
  });
}
