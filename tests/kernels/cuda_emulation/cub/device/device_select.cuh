// CUB's selection on the host; see cuda_runtime.h. As CUB's it takes an error that somebody left behind for its own.
#ifndef RANKHOUSE_TESTS_CUDA_EMULATION_DEVICE_SELECT_CUH_
#define RANKHOUSE_TESTS_CUDA_EMULATION_DEVICE_SELECT_CUH_

#include "cuda_runtime.h"

namespace cub {

struct DeviceSelect {
  template <typename Input, typename Output, typename Count, typename Predicate>
  static cudaError_t If(void* temporary, size_t& bytes, Input input, Output output, Count num_selected, int count,
                        Predicate predicate, cudaStream_t) {
    bytes = 1;
    if (temporary == nullptr) return cudaSuccess;
    *num_selected = 0;
    for (int n = 0; n < count; ++n) {
      if (predicate(input[n])) output[(*num_selected)++] = input[n];
    }
    return cudaPeekAtLastError();
  }
};

}  // namespace cub

#endif  // RANKHOUSE_TESTS_CUDA_EMULATION_DEVICE_SELECT_CUH_
