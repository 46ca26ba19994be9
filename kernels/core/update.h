// The checks of optimizers and updates that need no device.
#ifndef RANKHOUSE_CORE_UPDATE_H_
#define RANKHOUSE_CORE_UPDATE_H_

#include "rankhouse/kernels.h"

namespace rankhouse {

// Checks the settings of the optimizer of table `table`, whose step must be at least first_step. Throws Error.
void CheckOptimizer(const rh_optimizer& optimizer, int32_t table, int64_t first_step = 1);

// Checks type, sizes and pointers of a table that is trained, and with rows that are not float32 that the step is at
// least first_step. Where no row is updated, pointers may be NULL. Throws Error.
void CheckTrainedTable(const rh_trained_table& trained, const rh_optimizer& optimizer, int32_t table, bool updated,
                       int64_t first_step = 1);

// Checks settings, sizes and pointers of all updates, for rh_apply or for rh_catch_up. Throws Error.
void CheckUpdates(const rh_update* updates, int32_t num_tables);
void CheckCatchUps(const rh_update* updates, int32_t num_tables);

// Throws the Error of the id at a position that is out of range, or not above the one before it (-1 at the first).
[[noreturn]] void ThrowUpdateFault(const rh_update& update, int32_t table, int64_t position, int64_t id,
                                   int64_t previous);

// Throws the Error of a row whose last step the update cannot follow.
[[noreturn]] void ThrowLastStepFault(const rh_update& update, int32_t table, int64_t row, int32_t last_step);

// Checks ids that lie in host memory: strictly increasing and in range; with RH_EXACT also the last steps of their
// rows. Throws Error.
void CheckUpdateIds(const rh_update& update, int32_t table);

// The same for rh_catch_up, where ids may be NULL.
void CheckCatchUpIds(const rh_update& update, int32_t table);

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_UPDATE_H_
