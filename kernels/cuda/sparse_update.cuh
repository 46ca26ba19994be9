// The frame of all optimizers on a GPU: checks and launches, for all tables at once, around a rule for one element.
#ifndef RANKHOUSE_CUDA_SPARSE_UPDATE_CUH_
#define RANKHOUSE_CUDA_SPARSE_UPDATE_CUH_

#include <vector>

#include "core/update.h"
#include "cuda/device.cuh"

namespace rankhouse {

// A position in the gradient of a table as a Fault: tables first, then positions.
constexpr int kPositionBits = 40;

// The updates of all tables as kernels see them: touched row i of all is row i - firsts[t] of table t.
struct DeviceUpdates {
  const rh_update* updates;  // [T]
  const int64_t* firsts;     // [T + 1]
  Fault* fault;
  int32_t num_tables;

  // The table of touched row i.
  __device__ int32_t Table(int64_t i) const {
    int32_t low = 0;
    int32_t high = num_tables - 1;
    while (low < high) {
      const int32_t middle = (low + high + 1) / 2;
      if (firsts[middle] <= i) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

__device__ inline int64_t NumIds(const rh_update& update) {
  return update.device_num_ids != nullptr ? *update.device_num_ids : update.num_ids;
}

// A thread owns an id and compares it with the one before it.
static __global__ void CheckIds(DeviceUpdates all) {
  const int64_t i = GlobalThread();
  if (i >= all.firsts[all.num_tables]) return;
  const int32_t t = all.Table(i);
  const rh_update update = all.updates[t];
  const int64_t k = i - all.firsts[t];
  if (k >= NumIds(update)) return;
  const int64_t id = update.ids[k];
  const int64_t previous = k == 0 ? -1 : update.ids[k - 1];
  if (id <= previous || id >= update.num_rows) {
    atomicMin(all.fault, static_cast<Fault>(t) << kPositionBits | static_cast<Fault>(k));
  }
}

// A group of `lanes` threads owns a touched row, and each of its threads some columns. Ids are unique once they are
// checked, so no two groups write the same row.
template <typename Rule>
__global__ void UpdateRows(DeviceUpdates all, int lanes, Rule rule) {
  const int64_t i = GlobalThread() / lanes;
  if (i >= all.firsts[all.num_tables] || *all.fault != kNoFault) return;
  const int32_t t = all.Table(i);
  const rh_update update = all.updates[t];
  const int64_t k = i - all.firsts[t];
  if (k >= NumIds(update)) return;
  const int64_t row = update.ids[k] * update.dim;
  for (int64_t d = threadIdx.x % lanes; d < update.dim; d += lanes) {
    float* accumulator = update.accumulator == nullptr ? nullptr : update.accumulator + row + d;
    rule(update.gradient[k * update.dim + d], update.rows + row + d, accumulator);
  }
}

struct UpdateWorkspace {
  UpdateWorkspace(Workspace* workspace, int32_t num_tables)
      : fault(workspace->Take<Fault>(1)),
        updates(workspace->Take<rh_update>(num_tables)),
        firsts(workspace->Take<int64_t>(num_tables + 1)) {}

  Fault* fault;
  rh_update* updates;
  int64_t* firsts;
};

// Applies `rule(gradient, row*, accumulator*)` to each element of each touched row, unless an id is bad.
template <typename Rule>
void ForTouchedRows(const rh_update* updates, int32_t num_tables, bool has_accumulator, Rule rule, Workspace workspace,
                    cudaStream_t stream) {
  CheckUpdates(updates, num_tables, has_accumulator);
  std::vector<int64_t> firsts = {0};
  int64_t max_dim = 1;
  for (int32_t t = 0; t < num_tables; ++t) {
    Require(updates[t].num_ids < int64_t{1} << kPositionBits, "the update of table ", t, " has too many ids");
    firsts.push_back(firsts.back() + updates[t].num_ids);
    max_dim = std::max(max_dim, updates[t].dim);
  }
  const UpdateWorkspace parts(&workspace, num_tables);
  ClearFaults(parts.fault, 1, stream);
  CopyToDevice(parts.updates, updates, num_tables, stream);
  CopyToDevice(parts.firsts, firsts.data(), num_tables + 1, stream);
  const DeviceUpdates device = {parts.updates, parts.firsts, parts.fault, num_tables};
  Launch(CheckIds, firsts.back(), stream, device);
  const int lanes = LanesPerRow(max_dim, 1);
  Launch(UpdateRows<Rule>, firsts.back() * lanes, stream, device, lanes, rule);
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_SPARSE_UPDATE_CUH_
