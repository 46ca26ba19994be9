// A GPU that an engine's lookups run on: its caches of rows, and the lookups' working memory.
#ifndef RANKHOUSE_ENGINE_DEVICE_TIER_H_
#define RANKHOUSE_ENGINE_DEVICE_TIER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "cache/replacement.h"
#include "engine/device_memory.h"
#include "engine/divided_caches.h"
#include "rankhouse/row_cache.h"

namespace rankhouse::engine {

using DeviceCaches = DividedCaches<rh_device_row_cache>;

// Any thread may call it.
class DeviceTier {
 public:
  using ScratchLease = std::unique_ptr<DeviceScratch, std::function<void(DeviceScratch*)>>;

  // Throws Error where there is no such device.
  DeviceTier(int32_t device, int64_t cache_bytes, cache::Policy policy);
  ~DeviceTier();

  int32_t device() const { return device_; }
  DeviceCaches& caches() { return caches_; }
  CacheTotals cache_totals();

  // Working memory for a lookup whose work is queued on the stream; it comes back when the lease ends. The device must
  // be the current one.
  ScratchLease Borrow(void* stream);

 private:
  std::shared_ptr<rh_device_row_cache> NewCache(int64_t bytes, int64_t row_bytes) const;
  std::unique_ptr<DeviceScratch> TakeScratch();

  const int32_t device_;
  const cache::Policy policy_;
  DeviceCaches caches_;
  std::mutex mutex_;                                    // guards what follows
  std::deque<std::unique_ptr<DeviceScratch>> scratch_;  // nobody's; used last: at the end
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_DEVICE_TIER_H_
