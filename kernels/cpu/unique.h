#ifndef RANKHOUSE_CPU_UNIQUE_H_
#define RANKHOUSE_CPU_UNIQUE_H_

#include <cstdint>

#include "cpu/scratch.h"
#include "rankhouse/kernels.h"

namespace rankhouse {

// What rh_unique writes; inverse and counts may be nullptr.
struct UniqueOutputs {
  int64_t* unique;
  int64_t* inverse;
  int64_t* counts;
};

// rh_unique, for arguments that were checked. Returns how many unique keys there are. Throws std::bad_alloc.
int64_t Unique(const int64_t* keys, int64_t num_keys, const UniqueOutputs& out, const rh_executor* executor,
               Scratch* scratch);

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_UNIQUE_H_
