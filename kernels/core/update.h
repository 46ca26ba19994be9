// The checks of an rh_update that need no device.
#ifndef RANKHOUSE_CORE_UPDATE_H_
#define RANKHOUSE_CORE_UPDATE_H_

#include "rankhouse/kernels.h"

namespace rankhouse {

// Checks sizes and pointers of all updates. Throws Error.
void CheckUpdates(const rh_update* updates, int32_t num_tables);

// Throws the Error of the id at a position that is out of range, or not above the one before it (-1 at the first).
[[noreturn]] void ThrowUpdateFault(const rh_update& update, int32_t table, int64_t position, int64_t id,
                                   int64_t previous);

// Checks ids that lie in host memory: strictly increasing and in range. Throws Error.
void CheckUpdateIds(const rh_update& update, int32_t table);

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_UPDATE_H_
