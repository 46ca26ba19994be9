// Optimizers on the rows of sparse gradients on a GPU, and what the exact kind of them has missed: one launch for the
// steps of all tables, after those that check ids and last steps.
#include "core/update.h"
#include "cuda/touched_rows.cuh"

namespace rankhouse {
namespace {

enum UpdateFault { kBadId = 0, kBadLastStep = 1, kNumUpdateFaults = 2 };

struct UpdateWorkspace {
  UpdateWorkspace(Workspace* workspace, int32_t num_tables)
      : faults(workspace->Take<Fault>(kNumUpdateFaults)), tables(workspace->Take<TouchedRows>(num_tables)) {}

  Fault* faults;
  TouchedRows* tables;
};

TouchedTables MakeTables(const rh_update* updates, int32_t num_tables, bool catches_up, const UpdateWorkspace& parts,
                         cudaStream_t stream) {
  std::vector<TouchedRows> tables;
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    const bool skipped = catches_up && update.optimizer->kind != RH_EXACT;
    TouchedRows rows = {};
    rows.trained = {update.table, MakeUpdateConstants(*update.optimizer)};
    rows.ids = update.ids;
    rows.device_num_ids = update.ids == nullptr ? nullptr : update.device_num_ids;
    rows.num_ids = skipped ? 0 : catches_up && update.ids == nullptr ? update.table.num_rows : update.num_ids;
    rows.gradient = catches_up ? nullptr : update.gradient;
    rows.most_last_step = catches_up ? std::numeric_limits<int32_t>::max() : update.optimizer->step - 1;
    Require(rows.num_ids < int64_t{1} << kPositionBits, "the update of table ", t, " has ", rows.num_ids,
            " ids: expected less than 2^", kPositionBits);
    tables.push_back(rows);
  }
  ClearFaults(parts.faults, kNumUpdateFaults, stream);
  return TouchedTables(std::move(tables), parts.tables, stream);
}

// Checks what only the device can see. Returns what stops the kernels behind it.
Stops Check(const TouchedTables& tables, const UpdateWorkspace& parts, cudaStream_t stream) {
  tables.CheckIds(&parts.faults[kBadId], stream);
  tables.CheckLastSteps({&parts.faults[kBadLastStep], nullptr}, {parts.faults, 1}, stream);
  return {parts.faults, kNumUpdateFaults};
}

void Apply(const rh_update* updates, int32_t num_tables, Workspace workspace, cudaStream_t stream) {
  CheckUpdates(updates, num_tables);
  const UpdateWorkspace parts(&workspace, num_tables);
  const TouchedTables tables = MakeTables(updates, num_tables, /*catches_up=*/false, parts, stream);
  const Stops stops = Check(tables, parts, stream);
  tables.CatchUp(1, stops, stream);
  tables.Step(stops, stream);
  tables.MoveUntouched(stops, stream);
}

void CatchUp(const rh_update* updates, int32_t num_tables, Workspace workspace, cudaStream_t stream) {
  CheckCatchUps(updates, num_tables);
  const UpdateWorkspace parts(&workspace, num_tables);
  const TouchedTables tables = MakeTables(updates, num_tables, /*catches_up=*/true, parts, stream);
  tables.CatchUp(0, Check(tables, parts, stream), stream);
}

// Throws what the kernels found wrong.
void CheckApply(const rh_update* updates, int32_t num_tables, const void* data, cudaStream_t stream) {
  Require(num_tables >= 0 && (num_tables == 0 || updates != nullptr), "num_tables is negative or updates is NULL");
  Workspace workspace = Workspace::Of(data);
  const UpdateWorkspace parts(&workspace, num_tables);
  Fault faults[kNumUpdateFaults];
  CopyToHost(faults, parts.faults, kNumUpdateFaults, stream);
  for (int fault = 0; fault < kNumUpdateFaults; ++fault) {
    if (faults[fault] == kNoFault) continue;
    const int32_t table = static_cast<int32_t>(faults[fault] >> kPositionBits);
    const int64_t position = static_cast<int64_t>(faults[fault] & ((Fault{1} << kPositionBits) - 1));
    const rh_update& update = updates[table];
    int64_t ids[2] = {-1, position};
    const int64_t count = position == 0 ? 1 : 2;
    if (update.ids != nullptr) CopyToHost(ids + 2 - count, update.ids + position + 1 - count, count, stream);
    if (fault == kBadId) ThrowUpdateFault(update, table, position, ids[1], ids[0]);
    int32_t last_step = 0;
    CopyToHost(&last_step, update.table.last_steps + ids[1], 1, stream);
    ThrowLastStepFault(update, table, ids[1], last_step);
  }
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

int rh_apply_cuda(const rh_update* updates, int32_t num_tables, void* workspace, int64_t workspace_bytes,
                  void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::Apply(updates, num_tables, rankhouse::Workspace(workspace, workspace_bytes),
                     static_cast<cudaStream_t>(stream));
  });
}

int rh_catch_up_cuda(const rh_update* updates, int32_t num_tables, void* workspace, int64_t workspace_bytes,
                     void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::CatchUp(updates, num_tables, rankhouse::Workspace(workspace, workspace_bytes),
                       static_cast<cudaStream_t>(stream));
  });
}

int rh_apply_check_cuda(const rh_update* updates, int32_t num_tables, const void* workspace, void* stream) {
  return rankhouse::Guard(
      [&] { rankhouse::CheckApply(updates, num_tables, workspace, static_cast<cudaStream_t>(stream)); });
}
