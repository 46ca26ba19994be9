// The backward of pooled lookup as a sparse gradient; see cuda/backward.cuh.
#include "cuda/sum_runs.cuh"

namespace rankhouse {
namespace {

std::vector<BackwardTable> CheckOutputs(const Lookup& lookup, const rh_sparse_gradient* gradients) {
  const std::vector<int64_t> num_ids = lookup.IdsPerTable();
  std::vector<BackwardTable> tables;
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    const rh_sparse_gradient& gradient = gradients[t];
    const rh_table& table = lookup.table(t);
    const int64_t needed = lookup.raw().offsets == nullptr ? std::min(num_ids[t], table.num_rows) : 0;
    Require(gradient.capacity >= needed, "the gradient of table ", t, " has capacity ", gradient.capacity,
            ": expected at least ", needed, " (see rh_gradient_capacity)");
    Require(gradient.capacity == 0 || (gradient.ids != nullptr && gradient.rows != nullptr), "the gradient of table ",
            t, " has NULL ids or rows");
    tables.push_back({0, table.num_rows, table.dim, gradient.ids, gradient.rows, gradient.capacity, {}, 0, 0});
  }
  return tables;
}

void PooledLookupGradient(const rh_lookup* raw, const rh_feature_rows* grad, const rh_sparse_gradient* gradients,
                          int64_t* num_rows, Workspace workspace, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  lookup.CheckFeatureRows(grad, "grad");
  if (lookup.num_tables() == 0) return;
  Require(gradients != nullptr && num_rows != nullptr, "gradients or num_rows is NULL");
  BackwardWorkspace parts(&workspace, lookup);
  SumRuns</*kUpdates=*/false>(SortIds(lookup, grad, CheckOutputs(lookup, gradients), &parts, num_rows, stream), stream);
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_gradient_workspace_cuda(const rh_lookup* lookup, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes != nullptr, "bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::BackwardWorkspace(&workspace, rankhouse::Lookup(lookup, rankhouse::Lookup::Memory::kDevice));
    *bytes = workspace.used();
  });
}

int rh_pooled_lookup_gradient_cuda(const rh_lookup* lookup, const rh_feature_rows* grad, rh_sparse_gradient* gradients,
                                   int64_t* num_rows, void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::PooledLookupGradient(lookup, grad, gradients, num_rows, rankhouse::Workspace(workspace, workspace_bytes),
                                    static_cast<cudaStream_t>(stream));
  });
}
