#include "cache/capacity.h"

#include <algorithm>
#include <limits>

#include "core/status.h"

namespace rankhouse::cache {

void CheckOptions(int64_t capacity_bytes, int64_t row_bytes, Policy policy) {
  constexpr int64_t kMostRowBytes = std::numeric_limits<int32_t>::max();
  Require(capacity_bytes >= 0, "capacity_bytes is ", capacity_bytes, ": expected >= 0");
  Require(row_bytes >= 1 && row_bytes <= kMostRowBytes, "row_bytes is ", row_bytes, ": expected 1 to ", kMostRowBytes);
  Require(policy == Policy::kLru || policy == Policy::kLfu, "policy is ", static_cast<int32_t>(policy),
          ": expected an rh_cache_policy, 0 (LRU) or 1 (LFU)");
}

int64_t NumSets(int64_t capacity_bytes, int64_t other_bytes, int64_t set_bytes) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  if (capacity_bytes >= kHugePage) capacity_bytes -= capacity_bytes % kHugePage;
  return std::max(int64_t{0}, capacity_bytes - other_bytes) / set_bytes;
}

}  // namespace rankhouse::cache
