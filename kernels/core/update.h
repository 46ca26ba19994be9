// The checks of an rh_update that need no device.
#ifndef RANKHOUSE_CORE_UPDATE_H_
#define RANKHOUSE_CORE_UPDATE_H_

#include "rankhouse/kernels.h"

namespace rankhouse {

// Checks sizes and pointers of all updates. Throws Error.
void CheckUpdates(const rh_update* updates, int32_t num_tables, bool has_accumulator);

// Checks ids that lie in host memory: strictly increasing and in range. Throws Error.
void CheckUpdateIds(const rh_update& update, int32_t table);

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_UPDATE_H_
