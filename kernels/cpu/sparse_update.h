// What updates of touched rows share on the CPU.
#ifndef RANKHOUSE_CPU_SPARSE_UPDATE_H_
#define RANKHOUSE_CPU_SPARSE_UPDATE_H_

#include "core/update.h"
#include "cpu/simd.h"

namespace rankhouse {

// Starts loading the row that comes kPrefetchRows ids later.
RH_INLINE void PrefetchTouched(const rh_update& update, const float* rows, int64_t k) {
  if (k + kPrefetchRows < update.num_ids) PrefetchRow(rows, update.ids[k + kPrefetchRows], update.table.dim);
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_SPARSE_UPDATE_H_
