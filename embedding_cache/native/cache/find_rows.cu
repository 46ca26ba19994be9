// Finding rows in a GPU's cache: a warp owns a key. Its threads compare the 32 keys of the set, 256 bytes that lie
// together, and copy the row, if it is there, 16 bytes each where size and addresses allow. What is missing is then
// gathered in the order of the keys, so the result does not depend on which warp was first. Times of use are all the
// same number, and uses are added up, so what the cache remembers does not either.
//
// Bytes moved: 256 + row_bytes read at random and row_bytes written per key; 8 per key read and 1 + about 6 written in
// order. A warp waits for two accesses in a row, the set and the row; 64 of them on each processor hide that.
#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>

#include "cache/find_rows.cuh"

namespace rankhouse::cache {
namespace {

template <typename Unit>
__global__ void Find(DeviceSets sets, const uint64_t* keys, int32_t n, uint32_t now, char* rows, uint8_t* is_missing) {
  const int64_t i = GlobalWarp();
  if (i >= n) return;
  const uint64_t key = keys[i];
  unsigned here = 0;
  int64_t first_slot = 0;
  if (sets.num_sets > 0) {
    const int64_t set = SetOf(key, sets.num_sets);
    first_slot = set * DeviceSets::kWays;
    const bool holds = Lane() < static_cast<int>(sets.num_rows[set]);
    here = __ballot_sync(kWholeWarp, holds && sets.keys[first_slot + Lane()] == key);
  }
  if (Lane() == 0) is_missing[i] = here == 0;
  if (here == 0) return;
  const int64_t slot = first_slot + __ffs(static_cast<int>(here)) - 1;
  if (Lane() == 0) {
    sets.last_used[slot] = now;
    if (sets.policy == Policy::kLfu && sets.uses[slot] < kMostUses) atomicAdd(&sets.uses[slot], 1u);
  }
  CopyRow<Unit>(rows + i * sets.row_bytes, sets.row(slot), sets.row_bytes);
}

struct IsMissing {
  const uint8_t* flags;

  __device__ bool operator()(int32_t i) const { return flags[i] != 0; }
};

__global__ void CountFound(DeviceCounts* counts, int64_t n, const int64_t* num_missing) {
  if (GlobalThread() != 0) return;
  counts->misses += static_cast<unsigned long long>(*num_missing);
  counts->hits += static_cast<unsigned long long>(n - *num_missing);
}

cudaError_t SelectMissing(void* temporary, size_t* bytes, const uint8_t* flags, int32_t count, int32_t* missing,
                          int64_t* num_missing, cudaStream_t stream) {
  return cub::DeviceSelect::If(temporary, *bytes, thrust::counting_iterator<int32_t>(0), missing, num_missing, count,
                               IsMissing{flags}, stream);
}

}  // namespace

void CheckNumKeys(int64_t n) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - kBlockThreads;
  Require(n >= 0 && n <= kMost, "n is ", n, ": expected 0 to ", kMost, " keys in a call on a GPU");
}

FindWorkspace::FindWorkspace(Workspace* workspace, int64_t n) : is_missing(workspace->Take<uint8_t>(n)) {
  CheckCuda(SelectMissing(nullptr, &select_bytes, nullptr, static_cast<int32_t>(n), nullptr, nullptr, nullptr),
            "planning the selection");
  temporary = workspace->Take<char>(static_cast<int64_t>(select_bytes));
}

void FindRows(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, char* rows, int32_t* missing,
              int64_t* num_missing, const FindWorkspace& workspace, cudaStream_t stream) {
  if (n == 0) {
    return CheckCuda(cudaMemsetAsync(num_missing, 0, sizeof(*num_missing), stream), "clearing the number of keys");
  }
  const int64_t at_once = BytesAtOnce(cache->row_bytes(), rows);
  const auto kernel = at_once == 16 ? Find<Bytes16> : at_once == 4 ? Find<uint32_t> : Find<uint8_t>;
  const int32_t count = static_cast<int32_t>(n);
  cache->Queue(stream, [&](const DeviceSets& sets, uint32_t now) {
    Launch(kernel, BlocksOfWarps(n), stream, sets, keys, count, now, rows, workspace.is_missing);
    size_t bytes = workspace.select_bytes;
    CheckCuda(SelectMissing(workspace.temporary, &bytes, workspace.is_missing, count, missing, num_missing, stream),
              "gathering what is missing");
    Launch(CountFound, 1, stream, sets.counts, n, num_missing);
  });
}

}  // namespace rankhouse::cache

using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::Workspace;

int rh_row_cache_find_workspace_cuda(int64_t n, int64_t* bytes) {
  return Guard([&] {
    Require(bytes != nullptr, "bytes is NULL");
    rankhouse::cache::CheckNumKeys(n);
    Workspace workspace;
    rankhouse::cache::FindWorkspace(&workspace, n);
    *bytes = workspace.used();
  });
}

int rh_row_cache_find_cuda(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, void* rows, int32_t* missing,
                           int64_t* num_missing, void* workspace, int64_t workspace_bytes, void* stream) {
  return Guard([&] {
    Require(cache != nullptr && num_missing != nullptr, "cache or num_missing is NULL");
    rankhouse::cache::CheckNumKeys(n);
    Require(n == 0 || (keys != nullptr && rows != nullptr && missing != nullptr),
            "keys, rows or missing is NULL, but there are ", n, " keys");
    Workspace memory(workspace, workspace_bytes);
    rankhouse::cache::FindRows(cache, keys, n, static_cast<char*>(rows), missing, num_missing,
                               rankhouse::cache::FindWorkspace(&memory, n), static_cast<cudaStream_t>(stream));
  });
}
