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

int rh_dot_interaction_cuda(const rh_interaction*, const float*, const float*, float*, void*) { return Unsupported(); }

int rh_dot_interaction_gradient_cuda(const rh_interaction*, const float*, const float*, const float*, float*, float*,
                                     void*) {
  return Unsupported();
}

int rh_pooled_lookup_workspace_cuda(const rh_lookup*, int64_t*) { return Unsupported(); }

int rh_pooled_lookup_cuda(const rh_lookup*, const rh_feature_rows*, void*, int64_t, void*) { return Unsupported(); }

int rh_pooled_lookup_gradient_workspace_cuda(const rh_lookup*, int64_t*) { return Unsupported(); }

int rh_pooled_lookup_gradient_cuda(const rh_lookup*, const rh_feature_rows*, rh_sparse_gradient*, int64_t*, void*,
                                   int64_t, void*) {
  return Unsupported();
}

int rh_pooled_lookup_weight_gradient_cuda(const rh_lookup*, const rh_feature_rows*, float*, void*, int64_t, void*) {
  return Unsupported();
}

int rh_lookup_check_cuda(const rh_lookup*, const void*, rh_bad_ids*, void*) { return Unsupported(); }

int rh_apply_workspace_cuda(int32_t, int64_t*) { return Unsupported(); }

int rh_apply_cuda(const rh_update*, int32_t, void*, int64_t, void*) { return Unsupported(); }

int rh_catch_up_cuda(const rh_update*, int32_t, void*, int64_t, void*) { return Unsupported(); }

int rh_pooled_lookup_update_workspace_cuda(const rh_lookup*, int64_t*) { return Unsupported(); }

int rh_pooled_lookup_update_cuda(const rh_lookup*, const rh_feature_rows*, const rh_optimizer*, const rh_trained_table*,
                                 void*, int64_t, void*) {
  return Unsupported();
}

int rh_squared_norm_workspace_cuda(int32_t, int64_t*) { return Unsupported(); }

int rh_squared_norm_cuda(const rh_sparse_gradient*, const int64_t*, const int64_t*, int32_t, double*, void*, int64_t,
                         void*) {
  return Unsupported();
}

int rh_apply_check_cuda(const rh_update*, int32_t, const void*, void*) { return Unsupported(); }

int rh_quantize_rows_workspace_cuda(int64_t, int64_t*) { return Unsupported(); }

int rh_quantize_rows_cuda(const float*, int64_t, int64_t, int32_t, int64_t, void*, void*, int64_t, void*) {
  return Unsupported();
}

int rh_dequantize_rows_cuda(const void*, int64_t, int64_t, int32_t, int64_t, float*, void*) { return Unsupported(); }

int rh_quantize_rows_check_cuda(const void*, void*) { return Unsupported(); }

int rh_unique_workspace_cuda(int64_t, int64_t*) { return Unsupported(); }

int rh_unique_cuda(const int64_t*, int64_t, int64_t*, int64_t*, int64_t*, int64_t*, void*, int64_t, void*) {
  return Unsupported();
}
