// Inserting rows into a GPU's cache: keys are sorted by set, stably, and a warp owns a set and all its keys, which go
// in one after the other in their order. So no two warps write one set, no locks are needed, and which rows make way
// depends on the keys alone. Each thread of the warp holds one slot in registers.
//
// Bytes moved: 12 per key and pass of the sort, of which there are 4 at most; 512 read and written per set, at random;
// the row of each key read and written.
#include "cache/find_rows.cuh"
#include "cache/insert_rows.cuh"

namespace rankhouse::cache {
namespace {

// A set in the registers of a warp. All threads call all functions together.
struct WarpSet {
  // Of this thread's slot.
  uint64_t key;
  uint32_t last_used;
  uint32_t uses;
  // The same in all threads.
  uint32_t num_rows;
  uint32_t evictions;
  unsigned long long num_inserted = 0;
  unsigned long long num_evicted = 0;

  __device__ WarpSet(const DeviceSets& sets, int64_t set)
      : key(sets.keys[set * DeviceSets::kWays + Lane()]),
        last_used(sets.last_used[set * DeviceSets::kWays + Lane()]),
        uses(min(sets.uses[set * DeviceSets::kWays + Lane()], kMostUses)),
        num_rows(sets.num_rows[set]),
        evictions(sets.evictions[set]) {}

  __device__ void Store(const DeviceSets& sets, int64_t set) const {
    const int64_t slot = set * DeviceSets::kWays + Lane();
    sets.keys[slot] = key;
    sets.last_used[slot] = last_used;
    sets.uses[slot] = uses;
    if (Lane() != 0) return;
    sets.num_rows[set] = num_rows;
    sets.evictions[set] = evictions;
    atomicAdd(&sets.counts->inserted, num_inserted);
    atomicAdd(&sets.counts->evicted, num_evicted);
  }

  // Returns the way that a key has from now on: its own, a free one, or that of the row that makes way.
  __device__ int Place(uint64_t new_key, Policy policy, uint32_t now) {
    const unsigned here = __ballot_sync(kWholeWarp, Lane() < static_cast<int>(num_rows) && key == new_key);
    const int way = here != 0 ? __ffs(static_cast<int>(here)) - 1 : NewWay(policy, now);
    if (Lane() == way) {
      if (here == 0) key = new_key, uses = 0;
      uses = min(uses + 1, kMostUses);
      last_used = now;
    }
    return way;
  }

 private:
  __device__ int NewWay(Policy policy, uint32_t now) {
    ++num_inserted;
    if (num_rows < DeviceSets::kWays) return static_cast<int>(num_rows++);
    ++num_evicted;
    if (++evictions % (kEvictionsPerWay * DeviceSets::kWays) == 0) uses /= 2;
    // The highest of all, and among equals the first way. What it is takes 40 bits.
    uint64_t best = Dispensability(policy, uses, last_used, now) << 5 | static_cast<uint64_t>(31 - Lane());
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(kWholeWarp, best, step));
    return 31 - static_cast<int>(best % 32);
  }
};

// A thread owns a key.
__global__ void FindSets(const uint64_t* keys, int32_t n, int64_t num_sets, uint32_t* sort_keys, int32_t* positions) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  sort_keys[i] = static_cast<uint32_t>(SetOf(keys[i], num_sets));
  positions[i] = static_cast<int32_t>(i);
}

template <typename Unit>
__global__ void Insert(DeviceSets sets, const uint64_t* keys, const char* rows, int32_t n, const uint32_t* sorted_sets,
                       const int32_t* positions, const int32_t* run_starts, const int32_t* num_runs, uint32_t now) {
  const int64_t run = GlobalWarp();
  if (run >= *num_runs) return;
  const int32_t begin = run_starts[run];
  const int32_t end = run + 1 < *num_runs ? run_starts[run + 1] : n;
  const int64_t set = sorted_sets[begin];
  WarpSet in_warp(sets, set);
  for (int32_t i = begin; i < end; ++i) {
    const int64_t position = positions[i];
    const int way = in_warp.Place(keys[position], sets.policy, now);
    // A slot that is written twice gets each byte from the same thread, so the later row stays.
    CopyRow<Unit>(sets.row(set * DeviceSets::kWays + way), rows + position * sets.row_bytes, sets.row_bytes);
  }
  in_warp.Store(sets, set);
}

int BitsBelow(int64_t num_sets) {
  int bits = 0;
  while (int64_t{1} << bits < num_sets) ++bits;
  return bits;
}

}  // namespace

InsertWorkspace::InsertWorkspace(Workspace* workspace, int64_t n)
    : run_starts(workspace->Take<int32_t>(n)),
      num_runs(workspace->Take<int32_t>(1)),
      sort(workspace, n, /*wide=*/false) {}

void InsertRows(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, const char* rows,
                InsertWorkspace* workspace, cudaStream_t stream) {
  if (n == 0 || cache->capacity_rows() == 0) return;
  const int64_t at_once = BytesAtOnce(cache->row_bytes(), rows);
  const auto kernel = at_once == 16 ? Insert<Bytes16> : at_once == 4 ? Insert<uint32_t> : Insert<uint8_t>;
  const int32_t count = static_cast<int32_t>(n);
  SortBuffers& sort = workspace->sort;
  sort.count = count;
  cache->Queue(stream, [&](const DeviceSets& sets, uint32_t now) {
    Launch(FindSets, DivideUp(n, kBlockThreads), stream, keys, count, sets.num_sets,
           static_cast<uint32_t*>(sort.keys[0]), sort.values[0]);
    sort.Sort(BitsBelow(sets.num_sets), stream);
    sort.CutRuns(std::nullopt, workspace->run_starts, workspace->num_runs, stream);
    Launch(kernel, BlocksOfWarps(n), stream, sets, keys, rows, count, static_cast<const uint32_t*>(sort.keys[0]),
           sort.values[0], workspace->run_starts, workspace->num_runs, now);
  });
}

}  // namespace rankhouse::cache

using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::Workspace;

int rh_row_cache_insert_workspace_cuda(int64_t n, int64_t* bytes) {
  return Guard([&] {
    Require(bytes != nullptr, "bytes is NULL");
    rankhouse::cache::CheckNumKeys(n);
    Workspace workspace;
    rankhouse::cache::InsertWorkspace(&workspace, n);
    *bytes = workspace.used();
  });
}

int rh_row_cache_insert_cuda(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, const void* rows,
                             void* workspace, int64_t workspace_bytes, void* stream) {
  return Guard([&] {
    Require(cache != nullptr, "cache is NULL");
    rankhouse::cache::CheckNumKeys(n);
    Require(n == 0 || (keys != nullptr && rows != nullptr), "keys or rows is NULL, but there are ", n, " keys");
    Workspace memory(workspace, workspace_bytes);
    rankhouse::cache::InsertWorkspace parts(&memory, n);
    rankhouse::cache::InsertRows(cache, keys, n, static_cast<const char*>(rows), &parts,
                                 static_cast<cudaStream_t>(stream));
  });
}
