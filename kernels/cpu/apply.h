// One table's update on the CPU, for what makes the gradient in the same call.
#ifndef RANKHOUSE_CPU_APPLY_H_
#define RANKHOUSE_CPU_APPLY_H_

#include "rankhouse/kernels.h"

namespace rankhouse {

// Makes the step. The update must have passed the checks of core/update.h.
void ApplyUpdate(const rh_update& update, const rh_executor* executor);

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_APPLY_H_
