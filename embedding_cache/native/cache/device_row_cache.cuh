// A cache of rows in a GPU's memory, as its kernels see it and as the host holds it.
#ifndef RANKHOUSE_CACHE_DEVICE_ROW_CACHE_CUH_
#define RANKHOUSE_CACHE_DEVICE_ROW_CACHE_CUH_

#include <memory>
#include <mutex>

#include "cache/replacement.h"
#include "cuda/device.cuh"
#include "rankhouse/row_cache.h"

namespace rankhouse::cache {

struct FreeOnDevice {
  void operator()(void* memory) const { Ignore(cudaFree(memory)); }
};

struct FreePinned {
  void operator()(void* memory) const { Ignore(cudaFreeHost(memory)); }
};

// What a cache has counted, in device memory.
struct DeviceCounts {
  unsigned long long hits;
  unsigned long long misses;
  unsigned long long inserted;
  unsigned long long evicted;
};

// The sets, as kernels see them. The slot of way w of set s is s * kWays + w; the ways from 0 to num_rows[s] - 1 hold
// rows, so no key is reserved.
struct DeviceSets {
  static constexpr int kWays = 32;  // one for each thread of a warp, which looks at a whole set at once

  int64_t num_sets;
  int64_t row_bytes;
  int64_t stride;  // from one slot's row to the next: row_bytes rounded up to 16
  char* rows;
  uint64_t* keys;
  uint32_t* last_used;
  uint32_t* uses;       // may run over kMostUses by those that read it at once, and counts as that then
  uint32_t* num_rows;   // [num_sets]
  uint32_t* evictions;  // [num_sets]
  DeviceCounts* counts;
  Policy policy;

  __device__ char* row(int64_t slot) const { return rows + slot * stride; }
};

constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int64_t GlobalWarp() { return GlobalThread() / 32; }

inline int64_t BlocksOfWarps(int64_t num_warps) { return DivideUp(num_warps * 32, kBlockThreads); }

// The most that one thread moves at once.
struct alignas(16) Bytes16 {
  uint32_t words[4];
};

// How many bytes a thread can move at once between rows of this size at these addresses: 16, 4 or 1.
inline int64_t BytesAtOnce(int64_t row_bytes, const void* rows) {
  const uint64_t all = static_cast<uint64_t>(row_bytes) | reinterpret_cast<uintptr_t>(rows);
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

// The threads of a warp copy a row together.
template <typename Unit>
__device__ void CopyRow(char* to, const char* from, int64_t bytes) {
  constexpr int64_t kBytes = sizeof(Unit);
  for (int64_t at = Lane() * kBytes; at < bytes; at += 32 * kBytes) {
    *reinterpret_cast<Unit*>(to + at) = *reinterpret_cast<const Unit*>(from + at);
  }
}

}  // namespace rankhouse::cache

// Any thread may call it; its calls on the device follow each other. Its lock is not given away by priority: a call
// waits for as long as a thread of lower priority, as that which warms a cache up, takes to queue its own.
struct rh_device_row_cache {
 public:
  explicit rh_device_row_cache(const rh_row_cache_options& options);
  ~rh_device_row_cache();
  rh_device_row_cache(const rh_device_row_cache&) = delete;
  rh_device_row_cache& operator=(const rh_device_row_cache&) = delete;

  int64_t row_bytes() const { return sets_.row_bytes; }
  int64_t bytes() const { return bytes_; }
  int64_t capacity_rows() const { return sets_.num_sets * rankhouse::cache::DeviceSets::kWays; }

  // What the calls on the stream have counted, once they are done: waits for them, while others may queue theirs.
  rankhouse::cache::DeviceCounts Count(cudaStream_t stream);

  // Calls body(sets, now), which queues work on the stream: after all that earlier calls queued, and before that of
  // later ones. `now` counts calls.
  template <typename Body>
  void Queue(cudaStream_t stream, Body body) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CheckDevice();
    rankhouse::CheckCuda(cudaStreamWaitEvent(stream, last_call_, 0), "waiting for the cache's last call");
    try {
      body(sets_, ++clock_);
    } catch (...) {
      rankhouse::Ignore(cudaEventRecord(last_call_, stream));  // part of the work may be queued
      throw;
    }
    rankhouse::CheckCuda(cudaEventRecord(last_call_, stream), "recording the cache's call");
  }

 private:
  void CheckDevice() const;

  std::mutex mutex_;  // held while a call is queued, so that calls queue as wholes
  rankhouse::cache::DeviceSets sets_ = {};
  int device_ = 0;
  std::unique_ptr<void, rankhouse::cache::FreeOnDevice> memory_;
  int64_t bytes_ = 0;
  cudaEvent_t last_call_ = nullptr;
  uint32_t clock_ = 0;
  std::mutex counting_;  // guards what follows; taken before mutex_
  // Pinned: a copy to other memory is waited for where it is queued.
  std::unique_ptr<rankhouse::cache::DeviceCounts, rankhouse::cache::FreePinned> counts_;
};

#endif  // RANKHOUSE_CACHE_DEVICE_ROW_CACHE_CUH_
