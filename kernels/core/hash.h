#ifndef RANKHOUSE_CORE_HASH_H_
#define RANKHOUSE_CORE_HASH_H_

#include <cstdint>

#include "core/host_device.h"

namespace rankhouse {

// A bijection of 64 bits after which every bit depends on every bit of the key: the finalizer of SplitMix64 (Stafford's
// variant 13). Keys that differ never come out equal, and keys in a row come out as if at random.
RH_HOST_DEVICE inline __attribute__((always_inline)) uint64_t HashKey(int64_t key) {
  uint64_t hash = static_cast<uint64_t>(key);
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_HASH_H_
