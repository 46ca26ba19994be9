// Optimizers on touched rows on the CPU. A thread owns a range of ids, and ids are unique, so no two threads write the
// same row.
#include <cmath>

#include "core/status.h"
#include "core/update.h"
#include "cpu/parallel.h"
#include "cpu/sparse_update.h"

namespace rankhouse {
namespace {

RH_SIMD void ApplySgd(const rh_update& update, int64_t begin, int64_t end) {
  const int64_t dim = update.table.dim;
  const float learning_rate = update.optimizer->learning_rate;
  for (int64_t k = begin; k < end; ++k) {
    PrefetchTouched(update, update.table.rows, k);
    float* __restrict row = update.table.rows + update.ids[k] * dim;
    const float* __restrict gradient = update.gradient + k * dim;
    for (int64_t d = 0; d < dim; ++d) row[d] -= learning_rate * gradient[d];
  }
}

RH_SIMD void ApplyAdagrad(const rh_update& update, int64_t begin, int64_t end) {
  const int64_t dim = update.table.dim;
  const float learning_rate = update.optimizer->learning_rate;
  const float epsilon = update.optimizer->epsilon;
  for (int64_t k = begin; k < end; ++k) {
    PrefetchTouched(update, update.table.rows, k);
    PrefetchTouched(update, update.table.slots[0], k);
    float* __restrict row = update.table.rows + update.ids[k] * dim;
    float* __restrict accumulator = update.table.slots[0] + update.ids[k] * dim;
    const float* __restrict gradient = update.gradient + k * dim;
    for (int64_t d = 0; d < dim; ++d) {
      accumulator[d] += gradient[d] * gradient[d];
      row[d] -= learning_rate * gradient[d] / (std::sqrt(accumulator[d]) + epsilon);
    }
  }
}

void Apply(const rh_update* updates, int32_t num_tables, const rh_executor* executor) {
  CheckUpdates(updates, num_tables);
  for (int32_t t = 0; t < num_tables; ++t) {
    CheckUpdateIds(updates[t], t);
    const int32_t rule = updates[t].optimizer->rule;
    if (rule != RH_SGD && rule != RH_ADAGRAD) throw Error(RH_UNSUPPORTED, "this rule is not there yet");
  }
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    ParallelFor(executor, update.num_ids, 50 + 2 * update.table.dim, [&](int64_t begin, int64_t end) {
      update.optimizer->rule == RH_SGD ? ApplySgd(update, begin, end) : ApplyAdagrad(update, begin, end);
    });
  }
}

}  // namespace
}  // namespace rankhouse

int rh_num_slots(int32_t rule) {
  static constexpr int kNumSlots[] = {0, 1, 1, 1, 2, 2, 1, 2, 2};
  return rule < RH_SGD || rule > RH_ADAMAX ? -1 : kNumSlots[rule];
}

int rh_apply(const rh_update* updates, int32_t num_tables, const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::Apply(updates, num_tables, executor); });
}
