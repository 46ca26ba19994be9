// Copies between the memory that Triton hands out and ours.
#ifndef RANKHOUSE_TRITON_BACKEND_MEMORY_COPY_H_
#define RANKHOUSE_TRITON_BACKEND_MEMORY_COPY_H_

#include <cstdint>

#include "triton_api.h"

namespace rankhouse::triton {

// A block of memory as Triton describes it.
struct Place {
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;  // the number of the GPU, for TRITONSERVER_MEMORY_GPU

  bool is_host() const { return type != TRITONSERVER_MEMORY_GPU; }
};

// Copies bytes between host memory and a place that may be on a GPU (clients offer such memory as "CUDA shared
// memory"), in either direction: `place` describes whichever end Triton owns. Throws Failure where there is no driver
// of CUDA's, or it refuses.
void Copy(const Place& place, const void* from, void* to, uint64_t num_bytes);

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_MEMORY_COPY_H_
