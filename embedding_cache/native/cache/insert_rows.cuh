#ifndef RANKHOUSE_CACHE_INSERT_ROWS_CUH_
#define RANKHOUSE_CACHE_INSERT_ROWS_CUH_

#include "cache/device_row_cache.cuh"
#include "cuda/sort.cuh"

namespace rankhouse::cache {

struct InsertWorkspace {
  InsertWorkspace(Workspace* workspace, int64_t n);

  int32_t* run_starts;  // [n] where the keys of a set begin, in sorted order
  int32_t* num_runs;
  SortBuffers sort;
};

// rh_row_cache_insert_cuda, for arguments that were checked; n may be less than what the workspace is for.
void InsertRows(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, const char* rows,
                InsertWorkspace* workspace, cudaStream_t stream);

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_INSERT_ROWS_CUH_
