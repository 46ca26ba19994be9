// What the CUDA entry points are in a build without CUDA: they say so.
#include "core/status.h"

namespace {

int Unsupported() {
  return rankhouse::Fail(RH_UNSUPPORTED,
                         "this library was built without CUDA: build it where nvcc and a GPU are, or with "
                         "-DRANKHOUSE_CUDA=ON (pip install . -C cmake.define.RANKHOUSE_CUDA=ON)");
}

}  // namespace

int rh_built_with_cuda(void) { return 0; }

int rh_pooled_lookup_workspace_cuda(const rh_lookup*, int64_t*) { return Unsupported(); }

int rh_pooled_lookup_cuda(const rh_lookup*, float*, void*, int64_t, void*) { return Unsupported(); }

int rh_pooled_lookup_gradient_workspace_cuda(const rh_lookup*, int64_t*) { return Unsupported(); }

int rh_pooled_lookup_gradient_cuda(const rh_lookup*, const float*, rh_sparse_gradient*, int64_t*, void*, int64_t,
                                   void*) {
  return Unsupported();
}

int rh_lookup_check_cuda(const rh_lookup*, const void*, void*) { return Unsupported(); }

int rh_apply_workspace_cuda(int32_t, int64_t*) { return Unsupported(); }

int rh_apply_sgd_cuda(const rh_update*, int32_t, float, void*, int64_t, void*) { return Unsupported(); }

int rh_apply_adagrad_cuda(const rh_update*, int32_t, float, float, void*, int64_t, void*) { return Unsupported(); }

int rh_apply_check_cuda(const rh_update*, int32_t, const void*, void*) { return Unsupported(); }
