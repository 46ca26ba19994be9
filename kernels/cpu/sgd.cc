// SGD on touched rows on the CPU. A thread owns a range of ids. Bytes moved: U * D * 4 of gradient read in order, and
// as much of rows read and written at rising addresses.
#include "core/status.h"
#include "cpu/sparse_update.h"

namespace rankhouse {
namespace {

RH_SIMD void UpdateRows(const rh_update& update, int64_t begin, int64_t end, float learning_rate) {
  for (int64_t k = begin; k < end; ++k) {
    PrefetchTouched(update, update.rows, k);
    float* __restrict row = update.rows + update.ids[k] * update.dim;
    const float* __restrict gradient = update.gradient + k * update.dim;
    for (int64_t d = 0; d < update.dim; ++d) row[d] -= learning_rate * gradient[d];
  }
}

}  // namespace
}  // namespace rankhouse

int rh_apply_sgd(const rh_update* updates, int32_t num_tables, float learning_rate, const rh_executor* executor) {
  return rankhouse::Guard([&] {
    rankhouse::ForTouchedRows(updates, num_tables, /*has_accumulator=*/false, executor,
                              [&](const rh_update& update, int64_t begin, int64_t end) {
                                rankhouse::UpdateRows(update, begin, end, learning_rate);
                              });
  });
}
