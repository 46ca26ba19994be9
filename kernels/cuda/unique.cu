// Distinct keys on a GPU: sort with positions, cut into runs, number them.
//
// A block owns kBlockThreads sorted keys: one search finds the run of its first, and counting the runs that begin among
// the others gives theirs. Bytes moved: 24 per key and pass of the sort, of which there are 8, and about 40 per key.
#include "cuda/sort.cuh"

namespace rankhouse {
namespace {

// Unsigned numbers in the order of the signed keys, and back: it is its own inverse.
__device__ uint64_t OrderOf(uint64_t key) { return key ^ uint64_t{1} << 63; }

struct UniqueWorkspace {
  UniqueWorkspace(Workspace* workspace, int64_t num_keys)
      : run_starts(workspace->Take<int32_t>(num_keys)),
        num_runs(workspace->Take<int32_t>(1)),
        sort(workspace, num_keys, /*wide=*/true) {}

  int32_t* run_starts;
  int32_t* num_runs;
  SortBuffers sort;
};

__global__ void MakeKeys(const int64_t* keys, int32_t count, uint64_t* sort_keys, int32_t* positions) {
  const int64_t n = GlobalThread();
  if (n >= count) return;
  sort_keys[n] = OrderOf(static_cast<uint64_t>(keys[n]));
  positions[n] = static_cast<int32_t>(n);
}

// A thread owns a run.
__global__ void WriteRuns(const uint64_t* sorted, int32_t count, const int32_t* run_starts, const int32_t* num_runs,
                          int64_t* unique, int64_t* counts, int64_t* num_unique) {
  const int64_t run = GlobalThread();
  if (run == 0) *num_unique = *num_runs;
  if (run >= *num_runs) return;
  const int32_t begin = run_starts[run];
  unique[run] = static_cast<int64_t>(OrderOf(sorted[begin]));
  if (counts != nullptr) counts[run] = (run + 1 < *num_runs ? run_starts[run + 1] : count) - begin;
}

__global__ void WriteInverse(const uint64_t* sorted, int32_t count, const int32_t* positions, const int32_t* run_starts,
                             const int32_t* num_runs, int64_t* inverse) {
  __shared__ int32_t first_run;
  __shared__ int32_t begun[kBlockThreads / 32];  // runs that begin in each warp
  const int32_t block_begin = static_cast<int32_t>(blockIdx.x) * kBlockThreads;
  const int32_t n = block_begin + static_cast<int32_t>(threadIdx.x);
  if (threadIdx.x == 0) first_run = LastNotAbove(run_starts, *num_runs, block_begin);
  const bool begins = threadIdx.x > 0 && n < count && sorted[n] != sorted[n - 1];
  const unsigned in_warp = __ballot_sync(0xffffffffu, begins);
  if (threadIdx.x % 32 == 0) begun[threadIdx.x / 32] = __popc(in_warp);
  __syncthreads();
  if (n >= count) return;
  int64_t run = first_run + __popc(in_warp & (0xffffffffu >> (31 - threadIdx.x % 32)));
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) run += begun[warp];
  inverse[positions[n]] = run;
}

void Unique(const int64_t* keys, int64_t num_keys, int64_t* unique, int64_t* inverse, int64_t* counts,
            int64_t* num_unique, Workspace workspace, cudaStream_t stream) {
  Require(num_keys == 0 || (keys != nullptr && unique != nullptr), "keys or unique is NULL, but there are ", num_keys,
          " keys");
  Require(num_unique != nullptr, "num_unique is NULL");
  UniqueWorkspace parts(&workspace, num_keys);
  if (num_keys == 0) {
    return CheckCuda(cudaMemsetAsync(num_unique, 0, sizeof(*num_unique), stream), "clearing the number of keys");
  }
  const int32_t count = static_cast<int32_t>(num_keys);
  const int64_t num_blocks = DivideUp(num_keys, kBlockThreads);
  SortBuffers& sort = parts.sort;
  Launch(MakeKeys, num_blocks, stream, keys, count, static_cast<uint64_t*>(sort.keys[0]), sort.values[0]);
  sort.Sort(64, stream);
  sort.CutRuns(std::nullopt, parts.run_starts, parts.num_runs, stream);
  const uint64_t* sorted = static_cast<const uint64_t*>(sort.keys[0]);
  Launch(WriteRuns, num_blocks, stream, sorted, count, parts.run_starts, parts.num_runs, unique, counts, num_unique);
  if (inverse == nullptr) return;
  Launch(WriteInverse, num_blocks, stream, sorted, count, sort.values[0], parts.run_starts, parts.num_runs, inverse);
}

void CheckNumKeys(int64_t num_keys) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - kBlockThreads;
  Require(num_keys >= 0 && num_keys <= kMost, "num_keys is ", num_keys, ": expected 0 to ", kMost, " on a GPU");
}

}  // namespace
}  // namespace rankhouse

int rh_unique_workspace_cuda(int64_t num_keys, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes != nullptr, "bytes is NULL");
    rankhouse::CheckNumKeys(num_keys);
    rankhouse::Workspace workspace;
    rankhouse::UniqueWorkspace(&workspace, num_keys);
    *bytes = workspace.used();
  });
}

int rh_unique_cuda(const int64_t* keys, int64_t num_keys, int64_t* unique, int64_t* inverse, int64_t* counts,
                   int64_t* num_unique, void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::CheckNumKeys(num_keys);
    rankhouse::Unique(keys, num_keys, unique, inverse, counts, num_unique,
                      rankhouse::Workspace(workspace, workspace_bytes), static_cast<cudaStream_t>(stream));
  });
}
