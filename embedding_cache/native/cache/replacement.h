// Which set a key belongs to, and which row of a full set makes way: the same on all devices.
#ifndef RANKHOUSE_CACHE_REPLACEMENT_H_
#define RANKHOUSE_CACHE_REPLACEMENT_H_

#include <cstdint>

#include "core/hash.h"

namespace rankhouse::cache {

enum class Policy : int32_t { kLru = 0, kLfu = 1 };  // rh_cache_policy

// Uses beyond this count no more: all such rows are hot, and 8 halvings make any of them cold.
constexpr uint32_t kMostUses = 255;

// The counts of a set are halved each time so many rows for each of its ways have made way.
constexpr uint32_t kEvictionsPerWay = 8;

// num_sets > 0. The high half of a product spreads keys evenly over any number of sets.
RH_HOST_DEVICE inline int64_t SetOf(uint64_t key, int64_t num_sets) {
  __extension__ using Wide = unsigned __int128;
  const uint64_t hash = HashKey(static_cast<int64_t>(key));
  return static_cast<int64_t>(static_cast<Wide>(hash) * static_cast<uint64_t>(num_sets) >> 64);
}

// The row for which this is highest makes way. `now` and `last_used` count calls and wrap: a row unused for 2^32 calls
// looks young again, and stays longer than it should.
RH_HOST_DEVICE inline uint64_t Dispensability(Policy policy, uint32_t uses, uint32_t last_used, uint32_t now) {
  const uint64_t age = static_cast<uint32_t>(now - last_used);
  return policy == Policy::kLru ? age : static_cast<uint64_t>(kMostUses - uses) << 32 | age;
}

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_REPLACEMENT_H_
