// Adagrad on touched rows on a GPU: one launch for all tables, after one that checks the ids. Bytes moved: U * D * 4 of
// gradient read, and twice as much of rows and accumulator read and written.
#include "cuda/sparse_update.cuh"

namespace rankhouse {
namespace {

struct Adagrad {
  float learning_rate;
  float epsilon;

  __device__ void operator()(float gradient, float* row, float* accumulator) const {
    const float sum = *accumulator + gradient * gradient;
    *accumulator = sum;
    *row -= learning_rate * gradient / (sqrtf(sum) + epsilon);
  }
};

}  // namespace
}  // namespace rankhouse

int rh_apply_adagrad_cuda(const rh_update* updates, int32_t num_tables, float learning_rate, float epsilon,
                          void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::ForTouchedRows(updates, num_tables, /*has_accumulator=*/true, rankhouse::Adagrad{learning_rate, epsilon},
                              rankhouse::Workspace(workspace, workspace_bytes), static_cast<cudaStream_t>(stream));
  });
}
