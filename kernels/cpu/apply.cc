// Optimizers on touched rows on the CPU. A thread owns a range of ids, and ids are unique, so no two threads write the
// same row; of the rows that RH_DENSE moves besides, it owns a range.
#include "cpu/apply.h"

#include "core/status.h"
#include "core/update.h"
#include "cpu/parallel.h"
#include "cpu/update_rows.h"

namespace rankhouse {
namespace {

// About how many cycles an update of one row takes.
int64_t CostOfRow(const rh_update& update) { return 50 + 2 * update.table.dim; }

void Apply(const rh_update* updates, int32_t num_tables, const rh_executor* executor) {
  CheckUpdates(updates, num_tables);
  for (int32_t t = 0; t < num_tables; ++t) CheckUpdateIds(updates[t], t);
  for (int32_t t = 0; t < num_tables; ++t) ApplyUpdate(updates[t], executor);
}

void CatchUp(const rh_update* updates, int32_t num_tables, const rh_executor* executor) {
  CheckCatchUps(updates, num_tables);
  for (int32_t t = 0; t < num_tables; ++t) CheckCatchUpIds(updates[t], t);
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    if (update.optimizer->kind != RH_EXACT) continue;
    const UpdateConstants constants = MakeUpdateConstants(*update.optimizer);
    const int64_t num_rows = update.ids == nullptr ? update.table.num_rows : update.num_ids;
    ParallelFor(executor, num_rows, CostOfRow(update),
                [&](int64_t begin, int64_t end) { CatchUpRows(constants, update.table, update.ids, begin, end); });
  }
}

}  // namespace

void ApplyUpdate(const rh_update& update, const rh_executor* executor) {
  const UpdateConstants constants = MakeUpdateConstants(*update.optimizer);
  ParallelFor(executor, update.num_ids, CostOfRow(update), [&](int64_t begin, int64_t end) {
    UpdateRows(constants, update.table, update.ids + begin, update.gradient + begin * update.table.dim, end - begin);
  });
  if (constants.kind != RH_DENSE) return;
  ParallelFor(executor, update.table.num_rows, CostOfRow(update), [&](int64_t begin, int64_t end) {
    MoveUntouchedRows(constants, update.table, update.ids, update.num_ids, begin, end);
  });
}

}  // namespace rankhouse

int rh_apply(const rh_update* updates, int32_t num_tables, const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::Apply(updates, num_tables, executor); });
}

int rh_catch_up(const rh_update* updates, int32_t num_tables, const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::CatchUp(updates, num_tables, executor); });
}
