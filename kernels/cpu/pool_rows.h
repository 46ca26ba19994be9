// The inner loops of the lookup. There is one set of them for each instruction set; all give the same bits.
#ifndef RANKHOUSE_CPU_POOL_ROWS_H_
#define RANKHOUSE_CPU_POOL_ROWS_H_

#include <cstdint>

#include "core/lookup.h"

namespace rankhouse {

// The ids of a run that are no rows of their table.
struct BadRows {
  int64_t count = 0;
  int64_t first = std::numeric_limits<int64_t>::max();        // position among all ids
  int64_t first_fault = std::numeric_limits<int64_t>::max();  // of those that make the call fail
};

// Consecutive bags of one feature.
struct BagRun {
  const Feature* feature;
  const void* ids;         // of all features, of the lookup's type
  const float* weights;    // of all ids, or nullptr
  const int64_t* offsets;  // [num_bags + 1] bag i holds ids[offsets[i]] to ids[offsets[i + 1] - 1]; or nullptr:
  int64_t first_id;        // bags of hotness ids each begin here
  int64_t hotness;
  int64_t num_bags;
  float* out;  // bag i goes to out + i * stride
  int64_t stride;
  int32_t combiner;      // an rh_combiner
  int32_t weighting;     // an rh_weighting
  bool straddles;        // rows may begin within a cache line
  bool streams;          // out is aligned, and too large for the caches: write past them
  const char* zero_row;  // at least as long as a row
  BadRows* bad;          // what is wrong is added here
};

// How rows come together. A copy is a bag of one row without a weight.
enum PoolMode { kCopyRows, kAddRows, kAddWeightedRows };

// Pools the columns [column, column + the loop's width) of a run.
using PoolLoop = void (*)(const BagRun& run, int64_t column);

struct PoolLoops {
  int64_t max_float_columns;  // of one loop over float32 rows
  int64_t max_columns;        // of one over others
  PoolLoop (*loop)(int32_t id_type, int32_t row_type, PoolMode mode, int64_t columns);
};

// The best ones for this processor.
const PoolLoops& BestPoolLoops();

// Pools a run.
void PoolRows(const PoolLoops& loops, int32_t id_type, const BagRun& run);

// What loops call at an id that is no row: the row that the table's policy puts in its place. Counts it if column is 0.
const char* RowOfBadId(const BagRun& run, int64_t position, int64_t id, int64_t column) noexcept
    __attribute__((cold, noinline));

extern const PoolLoops kPlainPoolLoops;
#if defined(__x86_64__)
extern const PoolLoops kAvx2PoolLoops;
extern const PoolLoops kAvx512PoolLoops;
#endif

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_POOL_ROWS_H_
