// The frame of all optimizers on the CPU: checks, threads and prefetch around a rule for one row.
#ifndef RANKHOUSE_CPU_SPARSE_UPDATE_H_
#define RANKHOUSE_CPU_SPARSE_UPDATE_H_

#include "core/update.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace rankhouse {

// Calls update_rows(update, begin, end) for ranges of the ids of each table, once all ids are known to be good. A
// thread owns a range of ids, and ids are unique, so no two threads write the same row.
template <typename UpdateRows>
void ForTouchedRows(const rh_update* updates, int32_t num_tables, bool has_accumulator, const rh_executor* executor,
                    UpdateRows update_rows) {
  CheckUpdates(updates, num_tables, has_accumulator);
  for (int32_t t = 0; t < num_tables; ++t) CheckUpdateIds(updates[t], t);
  for (int32_t t = 0; t < num_tables; ++t) {
    ParallelFor(executor, updates[t].num_ids, 50 + 2 * updates[t].dim,
                [&](int64_t begin, int64_t end) { update_rows(updates[t], begin, end); });
  }
}

// Starts loading the row that comes kPrefetchRows ids later.
RH_INLINE void PrefetchTouched(const rh_update& update, const float* rows, int64_t k) {
  if (k + kPrefetchRows < update.num_ids) PrefetchRow(rows, update.ids[k + kPrefetchRows], update.dim);
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_SPARSE_UPDATE_H_
