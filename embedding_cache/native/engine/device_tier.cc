#include "engine/device_tier.h"

#include <utility>

#include "core/status.h"

namespace rankhouse::engine {
namespace {

// A lookup that finds this many that the device still works with waits for the oldest, and makes no more.
constexpr size_t kMostBusy = 4;

}  // namespace

DeviceTier::DeviceTier(int32_t device, int64_t cache_bytes, cache::Policy policy)
    : device_(device),
      policy_(policy),
      caches_(cache_bytes, [this](int64_t bytes, int64_t row_bytes) { return NewCache(bytes, row_bytes); }) {
  CheckDevice(device);
}

DeviceTier::~DeviceTier() = default;

std::shared_ptr<rh_device_row_cache> DeviceTier::NewCache(int64_t bytes, int64_t row_bytes) const {
  const CurrentDevice current(device_);
  const rh_row_cache_options options = {bytes, row_bytes, static_cast<int32_t>(policy_)};
  rh_device_row_cache* cache = nullptr;
  const int status = rh_row_cache_create_cuda(&options, &cache);
  if (status != RH_OK) throw Error(status, StrCat(rh_last_error(), " (the option 'device_cache_bytes')"));
  return std::shared_ptr<rh_device_row_cache>(cache, rh_row_cache_destroy_cuda);
}

CacheTotals DeviceTier::cache_totals() {
  const CurrentDevice current(device_);
  CacheTotals totals;
  caches_.ForEach([&](rh_device_row_cache& cache) {
    rh_row_cache_counters counters = {};
    const int status = rh_row_cache_count_cuda(&cache, &counters, ThreadStream());
    if (status != RH_OK) throw Error(status, rh_last_error());
    totals.bytes += counters.bytes;
    totals.num_evicted += counters.evicted;
  });
  return totals;
}

std::unique_ptr<DeviceScratch> DeviceTier::TakeScratch() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (scratch_.empty() || (scratch_.size() < kMostBusy && !scratch_.front()->IsIdle())) {
    return std::make_unique<DeviceScratch>();
  }
  std::unique_ptr<DeviceScratch> oldest = std::move(scratch_.front());
  scratch_.pop_front();
  return oldest;
}

DeviceTier::ScratchLease DeviceTier::Borrow(void* stream) {
  const auto give_back = [this, stream](DeviceScratch* scratch) {
    scratch->End(stream);
    const std::lock_guard<std::mutex> lock(mutex_);
    scratch_.emplace_back(scratch);
  };
  return ScratchLease(TakeScratch().release(), give_back);
}

}  // namespace rankhouse::engine
