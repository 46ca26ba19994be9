#include <type_traits>

#include "cache/capacity.h"
#include "cache/device_row_cache.cuh"

namespace rankhouse::cache {
namespace {

// Beside the rows: key, time and uses of each slot, and two numbers of the set.
constexpr int64_t kSlotBytes = sizeof(uint64_t) + 2 * sizeof(uint32_t);
constexpr int64_t kSetBytes = DeviceSets::kWays * kSlotBytes + 2 * sizeof(uint32_t);

// Cuts the memory into its arrays, in an order in which each begins on a multiple of 128 bytes, or on its own size.
// Returns the bytes of all.
int64_t Cut(DeviceSets* sets, char* memory) {
  const int64_t num_slots = sets->num_sets * DeviceSets::kWays;
  int64_t used = 0;
  const auto take = [&](auto** array, int64_t bytes) {
    *array = reinterpret_cast<std::remove_pointer_t<decltype(array)>>(memory + used);
    used += bytes;
  };
  take(&sets->rows, num_slots * sets->stride);
  take(&sets->keys, num_slots * sizeof(uint64_t));
  take(&sets->last_used, num_slots * sizeof(uint32_t));
  take(&sets->uses, num_slots * sizeof(uint32_t));
  take(&sets->counts, sizeof(DeviceCounts));
  take(&sets->num_rows, sets->num_sets * sizeof(uint32_t));
  take(&sets->evictions, sets->num_sets * sizeof(uint32_t));
  return used;
}

}  // namespace
}  // namespace rankhouse::cache

using rankhouse::CheckCuda;
using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::StrCat;

rh_device_row_cache::rh_device_row_cache(const rh_row_cache_options& options) {
  namespace cache = rankhouse::cache;
  sets_.policy = static_cast<cache::Policy>(options.policy);
  cache::CheckOptions(options.capacity_bytes, options.row_bytes, sets_.policy);
  sets_.row_bytes = options.row_bytes;
  sets_.stride = (options.row_bytes + 15) / 16 * 16;
  sets_.num_sets = cache::NumSets(options.capacity_bytes, sizeof(cache::DeviceCounts),
                                  cache::DeviceSets::kWays * sets_.stride + cache::kSetBytes);
  constexpr int64_t kMostSets = std::numeric_limits<int32_t>::max();
  Require(sets_.num_sets <= kMostSets, "capacity_bytes is ", options.capacity_bytes, ": expected room for ", kMostSets,
          " sets of ", cache::DeviceSets::kWays, " rows at most");
  CheckCuda(cudaGetDevice(&device_), "asking for the device");
  const int64_t bytes = cache::Cut(&sets_, nullptr);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw rankhouse::Error(RH_OUT_OF_MEMORY, StrCat("device ", device_, " has no ", bytes, " bytes for a cache"));
  }
  CheckCuda(error, "allocating a cache");
  memory_.reset(memory);
  // Without room for a set there are the counts alone, which are not the caller's memory to speak of.
  bytes_ = sets_.num_sets == 0 ? 0 : bytes;
  cache::Cut(&sets_, static_cast<char*>(memory));
  const int64_t rows_bytes = capacity_rows() * sets_.stride;
  CheckCuda(cudaMemset(static_cast<char*>(memory) + rows_bytes, 0, bytes - rows_bytes), "clearing a cache");
  void* counts = nullptr;
  CheckCuda(cudaMallocHost(&counts, sizeof(cache::DeviceCounts)), "allocating pinned memory for a cache's counts");
  counts_.reset(static_cast<cache::DeviceCounts*>(counts));
  CheckCuda(cudaEventCreateWithFlags(&last_call_, cudaEventDisableTiming), "making an event");
}

rh_device_row_cache::~rh_device_row_cache() {
  rankhouse::Ignore(cudaEventSynchronize(last_call_));
  rankhouse::Ignore(cudaEventDestroy(last_call_));
}

void rh_device_row_cache::CheckDevice() const {
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "asking for the device");
  Require(device == device_, "the cache lies on device ", device_, ", but the current device is ", device,
          ": make it the current one (cudaSetDevice) for the call");
}

rankhouse::cache::DeviceCounts rh_device_row_cache::Count(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(counting_);
  Queue(stream, [&](const rankhouse::cache::DeviceSets& sets, uint32_t) {
    CheckCuda(cudaMemcpyAsync(counts_.get(), sets.counts, sizeof(*counts_), cudaMemcpyDeviceToHost, stream),
              "copying a cache's counts to the host");
  });
  CheckCuda(cudaStreamSynchronize(stream), "waiting for a cache's counts");
  return *counts_;
}

int rh_row_cache_create_cuda(const rh_row_cache_options* options, rh_device_row_cache** cache) {
  return Guard([&] {
    Require(options != nullptr && cache != nullptr, "options or cache is NULL");
    *cache = nullptr;
    *cache = new rh_device_row_cache(*options);
  });
}

void rh_row_cache_destroy_cuda(rh_device_row_cache* cache) { delete cache; }

int rh_row_cache_count_cuda(rh_device_row_cache* cache, rh_row_cache_counters* counters, void* stream) {
  return Guard([&] {
    Require(cache != nullptr && counters != nullptr, "cache or counters is NULL");
    const rankhouse::cache::DeviceCounts counts = cache->Count(static_cast<cudaStream_t>(stream));
    const auto count = [](unsigned long long value) { return static_cast<int64_t>(value); };
    *counters = {count(counts.hits),
                 count(counts.misses),
                 count(counts.inserted),
                 count(counts.evicted),
                 count(counts.inserted - counts.evicted),
                 cache->capacity_rows(),
                 rankhouse::cache::DeviceSets::kWays,
                 cache->bytes()};
  });
}
