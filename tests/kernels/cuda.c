/* The functions of a GPU in a build without CUDA: each is there, and says that it cannot. */
#include "expect.h"

#define EXPECT_UNSUPPORTED(call) EXPECT_FAILS(call, RH_UNSUPPORTED, "built without CUDA")

int main(void) {
  int64_t bytes = 0;
  double norm = 0;
  if (rh_built_with_cuda()) return 0;
  EXPECT_UNSUPPORTED(rh_dot_interaction_cuda(NULL, NULL, NULL, NULL, NULL));
  EXPECT_UNSUPPORTED(rh_dot_interaction_gradient_cuda(NULL, NULL, NULL, NULL, NULL, NULL, NULL));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_workspace_cuda(NULL, &bytes));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_cuda(NULL, NULL, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_gradient_workspace_cuda(NULL, &bytes));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_gradient_cuda(NULL, NULL, NULL, NULL, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_weight_gradient_cuda(NULL, NULL, NULL, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_update_workspace_cuda(NULL, &bytes));
  EXPECT_UNSUPPORTED(rh_pooled_lookup_update_cuda(NULL, NULL, NULL, NULL, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_lookup_check_cuda(NULL, NULL, NULL, NULL));
  EXPECT_UNSUPPORTED(rh_apply_workspace_cuda(0, &bytes));
  EXPECT_UNSUPPORTED(rh_apply_cuda(NULL, 0, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_catch_up_cuda(NULL, 0, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_apply_check_cuda(NULL, 0, NULL, NULL));
  EXPECT_UNSUPPORTED(rh_squared_norm_workspace_cuda(0, &bytes));
  EXPECT_UNSUPPORTED(rh_squared_norm_cuda(NULL, NULL, NULL, 0, &norm, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_quantize_rows_workspace_cuda(0, &bytes));
  EXPECT_UNSUPPORTED(rh_quantize_rows_cuda(NULL, 0, 1, RH_FLOAT16, 0, NULL, NULL, 0, NULL));
  EXPECT_UNSUPPORTED(rh_dequantize_rows_cuda(NULL, 0, 1, RH_FLOAT16, 0, NULL, NULL));
  EXPECT_UNSUPPORTED(rh_quantize_rows_check_cuda(NULL, NULL));
  EXPECT_UNSUPPORTED(rh_unique_workspace_cuda(0, &bytes));
  EXPECT_UNSUPPORTED(rh_unique_cuda(NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL));
  return 0;
}
