// The order in which squares are added up, on every device.
//
// The n elements of a table's gradient are cut into kNormChunks chunks of equal length (the last ones shorter, or
// empty). In a chunk partial sum l adds up the squares of the elements whose number in the chunk is l mod kNormLanes,
// in rising order, in double; the partial sums are added pairwise (l and l + 16, l and l + 8, ..., l and l + 1). A
// table's sum is that of its chunks, from the first; the whole is that of the tables, from the first.
#ifndef RANKHOUSE_CORE_SQUARED_NORM_H_
#define RANKHOUSE_CORE_SQUARED_NORM_H_

#include <cstdint>

#include "core/host_device.h"

namespace rankhouse {

constexpr int64_t kNormChunks = 1024;
constexpr int64_t kNormLanes = 32;

// How many of n elements lie in a chunk: a multiple of kNormLanes.
RH_HOST_DEVICE inline int64_t NormChunkLength(int64_t n) {
  const int64_t rounds = (n + kNormChunks * kNormLanes - 1) / (kNormChunks * kNormLanes);
  return rounds * kNormLanes;
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_SQUARED_NORM_H_
