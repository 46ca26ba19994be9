#include "cpu/pool_rows.h"

#include <algorithm>

#include "cpu/simd.h"

namespace rankhouse {
namespace {

constexpr int64_t kBagsAtATime = 4;

const PoolLoops& ChoosePoolLoops() {
#if defined(__x86_64__) && RH_MAX_VECTOR_BITS >= 512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return kAvx512PoolLoops;
  }
#endif
#if defined(__x86_64__) && RH_MAX_VECTOR_BITS >= 256
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return kAvx2PoolLoops;
#endif
  return kPlainPoolLoops;
}

}  // namespace

const PoolLoops& BestPoolLoops() {
  static const PoolLoops& best = ChoosePoolLoops();
  return best;
}

void PoolRows(const PoolLoops& loops, int32_t id_type, const BagRun& run) {
  const bool of_one_row = run.offsets == nullptr && run.hotness == 1;
  const PoolMode mode = run.weights != nullptr ? kAddWeightedRows : of_one_row ? kCopyRows : kAddRows;
  const int32_t row_type = run.feature->type;
  const int64_t dim = run.feature->dim;
  const int64_t most = row_type == RH_FLOAT32 ? loops.max_float_columns : loops.max_columns;
  if (dim <= most) return loops.loop(id_type, row_type, mode, dim)(run, 0);
  // Wide rows: a few bags at a time, so that the next columns of a row are read soon after its first.
  BagRun part = run;
  for (int64_t bag = 0; bag < run.num_bags; bag += part.num_bags) {
    part.num_bags = std::min(run.num_bags - bag, kBagsAtATime);
    part.offsets = run.offsets == nullptr ? nullptr : run.offsets + bag;
    part.first_id = run.first_id + bag * run.hotness;
    part.out = run.out + bag * run.stride;
    for (int64_t column = 0; column < dim; column += most) {
      loops.loop(id_type, row_type, mode, std::min(dim - column, most))(part, column);
    }
  }
}

const char* RowOfBadId(const BagRun& run, int64_t position, int64_t id, int64_t column) noexcept {
  const Feature& feature = *run.feature;
  const int64_t row = feature.Row(id);
  if (column == 0) {
    ++run.bad->count;
    run.bad->first = std::min(run.bad->first, position);
    if (row == kFault) run.bad->first_fault = std::min(run.bad->first_fault, position);
  }
  return row >= 0 ? feature.rows + row * feature.stride : run.zero_row;
}

}  // namespace rankhouse
