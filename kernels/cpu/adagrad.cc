// Adagrad on touched rows on the CPU. A thread owns a range of ids. Bytes moved: U * D * 4 of gradient read in order,
// and twice as much of rows and accumulator read and written at rising addresses.
#include <cmath>

#include "core/status.h"
#include "cpu/sparse_update.h"

namespace rankhouse {
namespace {

RH_SIMD void UpdateRows(const rh_update& update, int64_t begin, int64_t end, float learning_rate, float epsilon) {
  for (int64_t k = begin; k < end; ++k) {
    PrefetchTouched(update, update.rows, k);
    PrefetchTouched(update, update.accumulator, k);
    float* __restrict row = update.rows + update.ids[k] * update.dim;
    float* __restrict accumulator = update.accumulator + update.ids[k] * update.dim;
    const float* __restrict gradient = update.gradient + k * update.dim;
    for (int64_t d = 0; d < update.dim; ++d) {
      accumulator[d] += gradient[d] * gradient[d];
      row[d] -= learning_rate * gradient[d] / (std::sqrt(accumulator[d]) + epsilon);
    }
  }
}

}  // namespace
}  // namespace rankhouse

int rh_apply_adagrad(const rh_update* updates, int32_t num_tables, float learning_rate, float epsilon,
                     const rh_executor* executor) {
  return rankhouse::Guard([&] {
    rankhouse::ForTouchedRows(updates, num_tables, /*has_accumulator=*/true, executor,
                              [&](const rh_update& update, int64_t begin, int64_t end) {
                                rankhouse::UpdateRows(update, begin, end, learning_rate, epsilon);
                              });
  });
}
