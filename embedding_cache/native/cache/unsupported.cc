// What the GPU's cache is in a build without CUDA: its functions say so.
#include "core/status.h"
#include "rankhouse/row_cache.h"

namespace {

int Unsupported() {
  return rankhouse::Fail(RH_UNSUPPORTED,
                         "this library was built without CUDA: build it where nvcc and a GPU are, or with "
                         "-DRANKHOUSE_CUDA=ON (pip install . -C cmake.define.RANKHOUSE_CUDA=ON)");
}

}  // namespace

int rh_row_cache_create_cuda(const rh_row_cache_options*, rh_device_row_cache**) { return Unsupported(); }

void rh_row_cache_destroy_cuda(rh_device_row_cache*) {}

int rh_row_cache_find_workspace_cuda(int64_t, int64_t*) { return Unsupported(); }

int rh_row_cache_find_cuda(rh_device_row_cache*, const uint64_t*, int64_t, void*, int32_t*, int64_t*, void*, int64_t,
                           void*) {
  return Unsupported();
}

int rh_row_cache_insert_workspace_cuda(int64_t, int64_t*) { return Unsupported(); }

int rh_row_cache_insert_cuda(rh_device_row_cache*, const uint64_t*, int64_t, const void*, void*, int64_t, void*) {
  return Unsupported();
}

int rh_row_cache_count_cuda(rh_device_row_cache*, rh_row_cache_counters*, void*) { return Unsupported(); }

int rh_row_cache_fetch_workspace_cuda(const rh_device_row_cache*, int64_t, int64_t*, int64_t*) { return Unsupported(); }

int rh_row_cache_fetch_cuda(rh_device_row_cache*, const rh_row_fetch*, void*, int64_t, void*) { return Unsupported(); }
