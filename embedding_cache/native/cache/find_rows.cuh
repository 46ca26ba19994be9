// The steps of the cache's calls, for those that queue several.
#ifndef RANKHOUSE_CACHE_FIND_ROWS_CUH_
#define RANKHOUSE_CACHE_FIND_ROWS_CUH_

#include "cache/device_row_cache.cuh"

namespace rankhouse::cache {

// Throws Error where a call's keys are more than a GPU takes.
void CheckNumKeys(int64_t n);

struct FindWorkspace {
  FindWorkspace(Workspace* workspace, int64_t n);

  uint8_t* is_missing;  // [n]
  size_t select_bytes = 0;
  char* temporary;
};

// rh_row_cache_find_cuda, for arguments that were checked.
void FindRows(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, char* rows, int32_t* missing,
              int64_t* num_missing, const FindWorkspace& workspace, cudaStream_t stream);

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_FIND_ROWS_CUH_
