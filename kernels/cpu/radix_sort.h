#ifndef RANKHOUSE_CPU_RADIX_SORT_H_
#define RANKHOUSE_CPU_RADIX_SORT_H_

#include <cstdint>

namespace rankhouse {

// Sorts keys [num_keys] by the `bits` bits above `shift`; keys that are equal there keep their order. Goes back and
// forth between keys and spare [num_keys], and returns the one that holds the result. On the calling thread.
uint64_t* RadixSort(uint64_t* keys, uint64_t* spare, int64_t num_keys, int shift, int bits);

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_RADIX_SORT_H_
