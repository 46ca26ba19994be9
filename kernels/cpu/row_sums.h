// Adds up the gradients of a table's touched rows, one contribution after the other, without a sort of the ids.
#ifndef RANKHOUSE_CPU_ROW_SUMS_H_
#define RANKHOUSE_CPU_ROW_SUMS_H_

#include <cstdint>

#include "core/lookup.h"
#include "cpu/touched_rows.h"

namespace rankhouse {

// The sums of one table's touched rows, while one thread adds to them. Contributions must come in the order of their
// positions. When a row has had RH_GRADIENT_CHUNK of them, its sum is put aside, and begins anew.
struct RowSums {
  float* rows;      // [U, D] the sums of the last chunks
  uint8_t* counts;  // [U] contributions of the last chunks; full ones wrap to 0
  int64_t dim;
  // Sums put aside: at most the table's ids / RH_GRADIENT_CHUNK.
  uint64_t* chunk_places;  // place << 32 | number
  float* chunks;           // [chunks, D]
  int64_t num_chunks;
};
static_assert(RH_GRADIENT_CHUNK == 256, "counts wrap where a chunk ends");

// Makes the sums of num_rows rows empty: -0 changes no sum, and unlike 0 leaves a first contribution of -0 alone.
void ClearSums(int64_t num_rows, RowSums* sums);

// Adds what the ids of the samples [begin, end) of a feature contribute; `grad` is the gradient of its rows. `touched`
// knows the rows of its table. Ids and bags are good.
void AddSamples(const Lookup& lookup, const Feature& feature, const rh_feature_rows& grad, const TouchedRows& touched,
                int64_t begin, int64_t end, RowSums* sums);

// Adds the sums put aside to those of the last chunks, which makes the gradient of rows [U, D].
void AddChunks(RowSums* sums);

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_ROW_SUMS_H_
