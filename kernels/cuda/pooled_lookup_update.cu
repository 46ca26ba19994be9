// The backward of pooled lookup fused with an optimizer's step; see cuda/backward.cuh and cuda/touched_rows.cuh.
#include "core/update.h"
#include "cuda/sum_runs.cuh"
#include "cuda/touched_rows.cuh"

namespace rankhouse {
namespace {

struct LookupUpdateWorkspace {
  LookupUpdateWorkspace(Workspace* workspace, const Lookup& lookup)
      : backward(workspace, lookup),
        num_rows(workspace->Take<int64_t>(lookup.num_tables())),
        touched(workspace->Take<TouchedRows>(lookup.num_tables())),
        ids(workspace->Take<int64_t>(lookup.num_ids())) {}

  BackwardWorkspace backward;
  int64_t* num_rows;
  TouchedRows* touched;
  int64_t* ids;  // of all runs, table by table
};

// A thread owns a run.
__global__ void WriteIds(const __grid_constant__ Backward backward, int64_t* ids) {
  const int64_t run = GlobalThread();
  if (backward.lookup.Failed() || run >= backward.first_runs[backward.num_tables]) return;
  const uint64_t key = backward.keys[backward.run_starts[run]];
  ids[run] = static_cast<int64_t>(key) - backward.tables[backward.TableOf(key)].first_key;
}

std::vector<BackwardTable> CheckTables(const Lookup& lookup, const rh_optimizer* optimizers,
                                       const rh_trained_table* tables) {
  std::vector<BackwardTable> checked;
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    const rh_table& table = lookup.table(t);
    CheckOptimizer(optimizers[t], t);
    Require(tables[t].num_rows == table.num_rows && tables[t].dim == table.dim, "table ", t,
            " that is trained has rows of shape [", tables[t].num_rows, ", ", tables[t].dim,
            "]: expected that of the lookup's table, [", table.num_rows, ", ", table.dim, "]");
    const bool is_used = table.num_rows > 0 && (lookup.num_ids() > 0 || optimizers[t].kind == RH_DENSE);
    CheckTrainedTable(tables[t], optimizers[t], t, is_used);
    const DeviceTrained trained = {tables[t], MakeUpdateConstants(optimizers[t])};
    checked.push_back({0, table.num_rows, table.dim, nullptr, nullptr, 0, trained, 0, 0});
  }
  return checked;
}

// The rows that kinds other than the lazy one work on besides.
TouchedTables MakeTouched(const Lookup& lookup, const std::vector<BackwardTable>& tables,
                          const LookupUpdateWorkspace& parts, cudaStream_t stream) {
  std::vector<TouchedRows> all;
  for (size_t t = 0; t < tables.size(); ++t) {
    TouchedRows rows = {};
    rows.trained = tables[t].trained;
    rows.ids = parts.ids;
    rows.first = parts.backward.first_runs + t;
    rows.device_num_ids = parts.num_rows + t;
    rows.num_ids = rows.trained.constants.kind == RH_LAZY ? 0 : std::min(lookup.num_ids(), tables[t].num_rows);
    rows.most_last_step = rows.trained.constants.step - 1;
    all.push_back(rows);
  }
  return TouchedTables(std::move(all), parts.touched, stream);
}

// Tells rh_lookup_check_cuda where to find last steps.
LastStepReport MakeReport(const std::vector<BackwardTable>& tables, const LookupWorkspace& parts, cudaStream_t stream) {
  std::vector<BadLastStep> rows;
  for (const BackwardTable& table : tables) {
    rows.push_back({kNoFault, table.trained.table.last_steps, table.trained.constants.step});
  }
  Upload(parts.last_steps, rows, stream);
  return {&parts.faults[kLastStep], parts.last_steps};
}

void PooledLookupUpdate(const rh_lookup* raw, const rh_feature_rows* grad, const rh_optimizer* optimizers,
                        const rh_trained_table* trained, Workspace workspace, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  lookup.CheckFeatureRows(grad, "grad");
  if (lookup.num_tables() == 0) return;
  Require(optimizers != nullptr && trained != nullptr, "optimizers or tables is NULL");
  const std::vector<BackwardTable> tables = CheckTables(lookup, optimizers, trained);
  LookupUpdateWorkspace parts(&workspace, lookup);
  const Backward backward = SortIds(lookup, grad, tables, &parts.backward, parts.num_rows, stream);
  const bool lazy = std::all_of(tables.begin(), tables.end(),
                                [](const BackwardTable& t) { return t.trained.constants.kind == RH_LAZY; });
  if (lazy) return SumRuns</*kUpdates=*/true>(backward, stream);
  const Stops stops = {backward.lookup.faults, kNumLookupFaults};
  const TouchedTables touched = MakeTouched(lookup, tables, parts, stream);
  Launch(WriteIds, DivideUp(lookup.num_ids(), kBlockThreads), stream, backward, parts.ids);
  touched.CheckLastSteps(MakeReport(tables, parts.backward.lookup, stream), stops, stream);
  touched.CatchUp(1, stops, stream);
  SumRuns</*kUpdates=*/true>(backward, stream);
  touched.MoveUntouched(stops, stream);
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_update_workspace_cuda(const rh_lookup* lookup, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes != nullptr, "bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::LookupUpdateWorkspace(&workspace, rankhouse::Lookup(lookup, rankhouse::Lookup::Memory::kDevice));
    *bytes = workspace.used();
  });
}

int rh_pooled_lookup_update_cuda(const rh_lookup* lookup, const rh_feature_rows* grad, const rh_optimizer* optimizers,
                                 const rh_trained_table* tables, void* workspace, int64_t workspace_bytes,
                                 void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::PooledLookupUpdate(lookup, grad, optimizers, tables, rankhouse::Workspace(workspace, workspace_bytes),
                                  static_cast<cudaStream_t>(stream));
  });
}
