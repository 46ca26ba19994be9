// How many sets fit into a cache's memory, on all devices.
#ifndef RANKHOUSE_CACHE_CAPACITY_H_
#define RANKHOUSE_CACHE_CAPACITY_H_

#include <cstdint>

#include "cache/replacement.h"

namespace rankhouse::cache {

// Throws Error where an option is out of its range.
void CheckOptions(int64_t capacity_bytes, int64_t row_bytes, Policy policy);

// How many sets of `set_bytes` fit beside `other_bytes`, where memory is taken in whole huge pages from one on.
int64_t NumSets(int64_t capacity_bytes, int64_t other_bytes, int64_t set_bytes);

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_CAPACITY_H_
