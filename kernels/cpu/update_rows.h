// Optimizers on rows on the CPU: rh_apply uses them, and whatever fuses an update with what makes the gradient.
#ifndef RANKHOUSE_CPU_UPDATE_ROWS_H_
#define RANKHOUSE_CPU_UPDATE_ROWS_H_

#include "core/update_rules.h"
#include "cpu/simd.h"

namespace rankhouse {

// Makes the step of the rows ids [num_ids], which are unique and in range, with gradient [num_ids, D]. With RH_EXACT
// they first make the steps that they have missed. The result does not depend on how ids are cut into calls.
void UpdateRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                const float* gradient, int64_t num_ids);

// RH_DENSE: makes the step of the rows [begin, end) that are not among ids [num_ids], which increase.
void MoveUntouchedRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                       int64_t num_ids, int64_t begin, int64_t end);

// RH_EXACT: makes the missed steps, up to and with constants.step, of the rows ids [begin, end), or where ids is NULL
// of the rows [begin, end).
void CatchUpRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids, int64_t begin,
                 int64_t end);

// Starts loading all that an update of a row reads; kNarrow: the table is not float32. The row may be wild.
template <bool kNarrow>
RH_INLINE void PrefetchTrained(const rh_trained_table& table, int32_t rule, int64_t row) {
  constexpr int64_t kBytes = sizeof(float);
  const int64_t row_bytes = table.dim * kBytes;
  PrefetchRow(table.rows, row, kNarrow ? row_bytes / 2 : row_bytes);
  if (table.slots[0] != nullptr) PrefetchRow(table.slots[0], row, rule == RH_ROWWISE_ADAGRAD ? kBytes : row_bytes);
  if (table.slots[1] != nullptr) PrefetchRow(table.slots[1], row, row_bytes);
  if (table.last_steps != nullptr) __builtin_prefetch(table.last_steps + row);
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_UPDATE_ROWS_H_
