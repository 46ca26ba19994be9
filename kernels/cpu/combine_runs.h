// Adds up what the ids of a batch contribute to the gradient of each row.
#ifndef RANKHOUSE_CPU_COMBINE_RUNS_H_
#define RANKHOUSE_CPU_COMBINE_RUNS_H_

#include "cpu/sorted_ids.h"

namespace rankhouse {

// What will be used next of each id: rows as wide as the gradient's, and single numbers.
struct UsedRows {
  const float* rows[3];
  const char* narrow_rows;  // with elements of 2 bytes; NULL: none
  const char* numbers[2];   // of 4 bytes
  int num_rows;
  int num_numbers;
};

// Adds up the runs of equal ids from *key on, which begins one: at most max_runs, and those that begin before `stop`.
// Writes ids [runs] and rows [runs, D], moves *key behind the last run, and returns how many there were. It also stops
// at a run of kLongRun keys or more. Each run is added in the order that rh_pooled_lookup_gradient promises.
// Meanwhile it starts loading what `used` (NULL: nothing) has of the ids to come.
int64_t CombineRuns(const TableIds& table, const UsedRows* used, const uint64_t** key, const uint64_t* stop,
                    int64_t max_runs, int64_t* ids, float* rows);

// sums [chunks, D] = the sum of each chunk of RH_GRADIENT_CHUNK of the keys [begin, end), which are of one id.
void CombineChunks(const TableIds& table, const uint64_t* begin, const uint64_t* end, float* sums);

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_COMBINE_RUNS_H_
