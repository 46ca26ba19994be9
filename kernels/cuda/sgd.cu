// SGD on touched rows on a GPU: one launch for all tables, after one that checks the ids. Bytes moved: U * D * 4 of
// gradient read, and as much of rows read and written.
#include "cuda/sparse_update.cuh"

namespace rankhouse {
namespace {

struct Sgd {
  float learning_rate;

  __device__ void operator()(float gradient, float* row, float*) const { *row -= learning_rate * gradient; }
};

// Throws what the kernels found wrong.
void CheckApply(const rh_update* updates, int32_t num_tables, const void* workspace, cudaStream_t stream) {
  CheckUpdates(updates, num_tables, /*has_accumulator=*/false);
  Require(workspace != nullptr, "workspace is NULL");
  Fault fault;
  CopyToHost(&fault, static_cast<const Fault*>(workspace), 1, stream);
  if (fault == kNoFault) return;
  const int32_t table = static_cast<int32_t>(fault >> kPositionBits);
  const int64_t position = static_cast<int64_t>(fault & ((Fault{1} << kPositionBits) - 1));
  int64_t ids[2] = {-1, -1};
  const int64_t count = position == 0 ? 1 : 2;
  CopyToHost(ids + 2 - count, updates[table].ids + position + 1 - count, count, stream);
  ThrowUpdateFault(updates[table], table, position, ids[1], ids[0]);
}

}  // namespace
}  // namespace rankhouse

int rh_apply_workspace_cuda(int32_t num_tables, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(num_tables >= 0 && bytes != nullptr, "num_tables is negative or bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::UpdateWorkspace(&workspace, num_tables);
    *bytes = workspace.used();
  });
}

int rh_apply_sgd_cuda(const rh_update* updates, int32_t num_tables, float learning_rate, void* workspace,
                      int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::ForTouchedRows(updates, num_tables, /*has_accumulator=*/false, rankhouse::Sgd{learning_rate},
                              rankhouse::Workspace(workspace, workspace_bytes), static_cast<cudaStream_t>(stream));
  });
}

int rh_apply_check_cuda(const rh_update* updates, int32_t num_tables, const void* workspace, void* stream) {
  return rankhouse::Guard(
      [&] { rankhouse::CheckApply(updates, num_tables, workspace, static_cast<cudaStream_t>(stream)); });
}
