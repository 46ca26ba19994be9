// The backward of pooled lookup on a GPU, for all tables at once: sort, cut into runs of equal ids, add up each run and
// write it as a gradient or make a step of an optimizer with it.
//
//   keys        <- table and id of each position, as one number below the rows of all tables (a block owns some bags)
//   keys        <- sorted, stable, by only the bits that are needed, so each run keeps the order of positions
//   runs        <- where the key changes
//   partials    <- the sums of the chunks of runs longer than RH_GRADIENT_CHUNK: a warp owns a chunk
//   short runs  <- a group of threads owns some neighbouring runs (cuda/segments.cuh), each thread some columns
//   long runs   <- a warp owns a run and adds its chunks' sums in their order
//
// Every sum has the order that rankhouse/lookup.h promises, and no atomics add, so the result is always the same bits.
// Bytes moved: 16 per id and radix pass (24 where keys need 64 bits), about 30 per id for keys, runs and scales, N * D
// * 4 of grad at random, and U * (8 + D * 4) written or what the optimizer moves.
#ifndef RANKHOUSE_CUDA_BACKWARD_CUH_
#define RANKHOUSE_CUDA_BACKWARD_CUH_

#include "cuda/device_lookup.cuh"
#include "cuda/sort.cuh"
#include "cuda/update_rows.cuh"

namespace rankhouse {

// How many neighbouring runs a group of threads takes at once.
constexpr int32_t kRunsPerGroup = 8;

// One table of a backward.
struct BackwardTable {
  int64_t first_key;  // that of its row 0
  int64_t num_rows;
  int64_t dim;
  int64_t* ids;  // where its gradient goes, or NULL
  float* rows;
  int64_t capacity;
  DeviceTrained trained;  // what is updated, if the gradient is not written
  int32_t lanes;
  int32_t columns;
};

// What kernels see of a backward.
struct Backward {
  DeviceLookup lookup;
  const BackwardTable* tables;  // [T]
  Keys keys;                    // [N] sorted; those of no row are end_key
  const int32_t* values;        // [N] with them: bags, or where by_position positions
  const int32_t* bags;          // [N] the bag of each position, where by_position
  const float* scales;          // [F * B] 1 / divisor
  const int32_t* run_starts;    // [number of runs + 1]
  const int32_t* first_runs;    // [T + 1] the first run of each table; [T] is their number
  const int32_t* first_items;   // [T + 1] the same for the work items that blocks take
  float* partials;              // [2 * windows, partial_stride]
  int64_t partial_stride;
  uint64_t end_key;
  int32_t num_ids;
  int32_t num_tables;
  int32_t by_position;

  __device__ int32_t TableOf(uint64_t key) const {
    return LastNotAbove(num_tables, key, [this](int32_t t) { return static_cast<uint64_t>(tables[t].first_key); });
  }
};

// The parts of a backward's workspace, in their order.
struct BackwardWorkspace {
  BackwardWorkspace(Workspace* workspace, const Lookup& lookup);

  LookupWorkspace lookup;
  int64_t num_windows;
  int64_t partial_stride;
  uint64_t end_key;
  BackwardTable* tables;
  int32_t* bags;
  float* scales;
  int32_t* run_starts;
  int32_t* num_runs;
  int32_t* first_runs;
  int32_t* first_items;
  float* partials;
  SortBuffers sort;
};

// Sorts the ids of a lookup and cuts them into runs. `tables` [T] without lanes and columns, which it sets; num_rows
// [T] on the device gets the number of runs of each. Kernels behind it must stop where lookup.Failed().
Backward SortIds(const Lookup& lookup, const rh_feature_rows* grad, std::vector<BackwardTable> tables,
                 BackwardWorkspace* parts, int64_t* num_rows, cudaStream_t stream);

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_BACKWARD_CUH_
