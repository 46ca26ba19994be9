// The second half of a backward: the sums of runs, and what becomes of them (cuda/backward.cuh).
#ifndef RANKHOUSE_CUDA_SUM_RUNS_CUH_
#define RANKHOUSE_CUDA_SUM_RUNS_CUH_

#include "cuda/backward.cuh"
#include "cuda/segments.cuh"

namespace rankhouse {

// The contributions to a run, as SumSegments sees them: entries are sorted keys.
struct Contributions {
  const Backward& backward;

  __device__ Entry Resolve(int32_t n) const {
    const DeviceLookup& lookup = backward.lookup;
    const int32_t value = backward.values[n];
    const int32_t bag = backward.by_position ? backward.bags[value] : value;
    const int32_t f = bag / static_cast<int32_t>(lookup.batch_size);
    const int32_t sample = bag - f * static_cast<int32_t>(lookup.batch_size);
    const DeviceFeature& from = lookup.features[f];
    if (from.feature.combiner == RH_NONE) return {Separate(from, f, value), 1.0f};
    const float weight = backward.by_position ? lookup.weight(value) : 1.0f;
    return {reinterpret_cast<const char*>(from.data + sample * from.stride), weight * backward.scales[bag]};
  }
  __device__ const char* Separate(const DeviceFeature& from, int32_t f, int32_t position) const {
    const DeviceLookup& lookup = backward.lookup;
    if (lookup.offsets != nullptr) {
      const int64_t k = position - lookup.offsets[f * lookup.batch_size];
      return reinterpret_cast<const char*>(from.data + k * from.stride);
    }
    const int64_t k = position - from.feature.first_id;
    const int64_t hotness = from.feature.hotness;
    return reinterpret_cast<const char*>(from.data + k / hotness * from.stride + k % hotness * from.feature.dim);
  }
  __device__ void Add(float) {}
};

// Where the sum of a run goes.
template <bool kUpdates, int kColumns>
struct RunTarget {
  const Backward& backward;
  const BackwardTable& table;
  const Group& group;
  int64_t column;
  bool active;
  // Row-wise Adagrad of rows wider than the group needs their columns twice: 0 adds squares, 1 makes the step.
  int round;
  float factor;
  RowwiseStep<kColumns> squares;

  __device__ void Close(int32_t run, const Columns<kColumns>& sum) {
    const int64_t id = static_cast<int64_t>(backward.keys[backward.run_starts[run]]) - table.first_key;
    if (kUpdates) {
      Step(id, sum);
      return;
    }
    const int64_t k = run - backward.first_runs[&table - backward.tables];
    if (active) *reinterpret_cast<Columns<kColumns>*>(table.rows + k * table.dim + column) = sum;
    if (column == 0) table.ids[k] = id;
  }
  __device__ void Step(int64_t id, const Columns<kColumns>& sum) {
    const DeviceTrained& trained = table.trained;
    const int64_t at = id * table.dim + column;
    if (trained.constants.rule == RH_ROWWISE_ADAGRAD) return StepRowwise(id, at, sum);
    if (active) StepColumns(trained, at, sum);
    if (trained.constants.kind == RH_EXACT && column == 0) {
      trained.table.last_steps[id] = static_cast<int32_t>(trained.constants.step);
    }
  }
  __device__ void StepRowwise(int64_t id, int64_t at, const Columns<kColumns>& sum) {
    if (round == 0) {
      squares.AddSquares(group, table.trained, at, sum, active);
      const bool is_last = column - group.lane * kColumns + group.lanes * kColumns >= table.dim;
      if (!is_last) return;
      factor = squares.Factor(group, table.trained, id);
      squares = {};
      if (table.dim > group.lanes * kColumns) return;
    }
    if (active) RowwiseStep<kColumns>::Step(table.trained, at, factor, sum);
  }
};

// The runs of a group.
template <bool kUpdates, int kColumns>
struct Runs : Contributions {
  RunTarget<kUpdates, kColumns> target;

  __device__ Runs(const Backward& backward, const RunTarget<kUpdates, kColumns>& target)
      : Contributions{backward}, target(target) {}
  __device__ int32_t End(int32_t run) const { return backward.run_starts[run + 1]; }
  __device__ void Close(int32_t run, int32_t, const Columns<kColumns>& sum) { target.Close(run, sum); }
};

// Calls sum(target) for all columns of a row by a group of threads, `lanes` times kColumns at a time, as often as the
// target needs. sum must call target.Close.
template <bool kUpdates, int kColumns, typename Sum>
__device__ __forceinline__ void ForColumns(RunTarget<kUpdates, kColumns>* target, Sum sum) {
  const BackwardTable& table = target->table;
  const int64_t width = target->group.lanes * kColumns;
  const bool twice = kUpdates && table.trained.constants.rule == RH_ROWWISE_ADAGRAD && table.dim > width;
  for (target->round = 0; target->round <= (twice ? 1 : 0); ++target->round) {
    for (int64_t base = 0; base < table.dim; base += width) {
      target->column = base + target->group.lane * kColumns;
      target->active = target->column < table.dim;
      sum(target);
    }
  }
}

__device__ inline bool IsLong(const Backward& backward, int32_t run) {
  return backward.run_starts[run + 1] - backward.run_starts[run] > RH_GRADIENT_CHUNK;
}

// The runs [first, last) of a table, but for the long ones.
template <bool kUpdates, int kColumns>
__device__ __forceinline__ void SumShortRuns(const Backward& backward, const BackwardTable& table, const Group& group,
                                             int32_t first, int32_t last) {
  Runs<kUpdates, kColumns> runs(backward, {backward, table, group, 0, false, 0, 0.0f, {}});
  bool any_long = false;
  for (int32_t run = first + group.lane; run < last; run += group.lanes) any_long |= IsLong(backward, run);
  const bool at_once = !group.Any(any_long) && table.dim <= group.lanes * kColumns;
  for (int32_t run = first; run < last; run = at_once ? last : run + 1) {
    if (!at_once && IsLong(backward, run)) continue;
    ForColumns(&runs.target, [&](RunTarget<kUpdates, kColumns>* target) {
      SumSegments<RH_FLOAT32, kColumns>(runs, group, run, at_once ? last : run + 1, backward.run_starts[run],
                                        target->column, table.dim, target->active);
    });
  }
}

// Blocks take work items, kRunsPerGroup runs for each of their groups, in turn.
template <bool kUpdates>
__global__ void __launch_bounds__(kBlockThreads, 3) SumAllShortRuns(const __grid_constant__ Backward backward) {
  if (backward.lookup.Failed()) return;
  const int32_t num_items = backward.first_items[backward.num_tables];
  for (int32_t item = blockIdx.x; item < num_items; item += gridDim.x) {
    const int32_t t = LastNotAbove(backward.first_items, backward.num_tables, item);
    const BackwardTable& table = backward.tables[t];
    const Group group(table.lanes);
    const int32_t index = (item - backward.first_items[t]) * group.per_block() + group.index();
    const int32_t first = backward.first_runs[t] + index * kRunsPerGroup;
    const int32_t last = min(first + kRunsPerGroup, backward.first_runs[t + 1]);
    if (first >= last) continue;
    table.columns == 4 ? SumShortRuns<kUpdates, 4>(backward, table, group, first, last)
                       : SumShortRuns<kUpdates, 1>(backward, table, group, first, last);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Runs of more than one chunk
//
// Their chunks begin every RH_GRADIENT_CHUNK keys from the run's first. So in a window of as many keys, from a multiple
// of their number on, at most two chunks begin: one that is not its run's first (slot 0 of the window), and one that is
// (slot 1). This is where a chunk's sum lies, with no list of chunks to be made.
// ---------------------------------------------------------------------------------------------------------------------

struct Chunk {
  int32_t begin;  // -1: no chunk begins here
  int32_t end;
};

// The first key of the run that key n is in.
__device__ inline int32_t RunBegin(const Backward& backward, int32_t n) {
  const uint64_t key = backward.keys[n];
  int32_t low = 0;
  for (int32_t high = n; low < high;) {
    const int32_t middle = low + (high - low) / 2;
    if (backward.keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The first key behind that run, or `limit` if that is before.
__device__ inline int32_t RunEnd(const Backward& backward, int32_t n, int32_t limit) {
  const uint64_t key = backward.keys[n];
  int32_t low = n;
  for (int32_t high = limit; low < high;) {
    const int32_t middle = low + (high - low) / 2;
    if (backward.keys[middle] <= key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// True if the run of key n may have more than RH_GRADIENT_CHUNK keys: then it reaches half of that to one side.
__device__ inline bool MayBeLong(const Backward& backward, int32_t n) {
  constexpr int32_t kHalf = RH_GRADIENT_CHUNK / 2;
  const uint64_t key = backward.keys[n];
  return key < backward.end_key && ((n >= kHalf && backward.keys[n - kHalf] == key) ||
                                    (n + kHalf < backward.num_ids && backward.keys[n + kHalf] == key));
}

// The chunk of a long run that begins in a window, of the given slot.
__device__ inline Chunk FindChunk(const Backward& backward, int32_t window, int32_t slot) {
  constexpr int32_t kChunk = RH_GRADIENT_CHUNK;
  const int32_t window_begin = window * kChunk;
  const int32_t window_end = min(window_begin + kChunk, backward.num_ids);
  // A long run that begins here reaches the next window; one with a later chunk here began before it.
  const int32_t probe = slot == 1 ? window_end - 1 : window_begin;
  if (!MayBeLong(backward, probe)) return {-1, -1};
  const int32_t run_begin = RunBegin(backward, probe);
  if (slot == 1) {
    const bool is_long =
        run_begin + kChunk < backward.num_ids && backward.keys[run_begin + kChunk] == backward.keys[run_begin];
    return run_begin >= window_begin && is_long ? Chunk{run_begin, run_begin + kChunk} : Chunk{-1, -1};
  }
  const int32_t begin = run_begin + (window_begin - run_begin + kChunk - 1) / kChunk * kChunk;
  if (begin == run_begin || begin >= window_end || backward.keys[begin] != backward.keys[run_begin]) return {-1, -1};
  return {begin, RunEnd(backward, begin, min(begin + kChunk, backward.num_ids))};
}

__device__ inline float* PartialOf(const Backward& backward, int32_t window, int32_t slot) {
  return backward.partials + (static_cast<int64_t>(window) * 2 + slot) * backward.partial_stride;
}

// One chunk, as the only segment of SumSegments.
template <int kColumns>
struct ChunkSum : Contributions {
  Chunk chunk;
  float* partial;
  int64_t column;
  bool active;

  __device__ ChunkSum(const Backward& backward, Chunk chunk, float* partial, int64_t column, bool active)
      : Contributions{backward}, chunk(chunk), partial(partial), column(column), active(active) {}
  __device__ int32_t End(int32_t) const { return chunk.end; }
  __device__ void Close(int32_t, int32_t, const Columns<kColumns>& sum) {
    if (active) *reinterpret_cast<Columns<kColumns>*>(partial + column) = sum;
  }
};

template <int kColumns>
__device__ void SumChunk(const Backward& backward, const BackwardTable& table, Chunk chunk, float* partial) {
  const Group group(32);
  for (int64_t base = 0; base < table.dim; base += group.lanes * kColumns) {
    const int64_t column = base + group.lane * kColumns;
    ChunkSum<kColumns> sum(backward, chunk, partial, column, column < table.dim);
    SumSegments<RH_FLOAT32, kColumns>(sum, group, 0, 1, chunk.begin, column, table.dim, column < table.dim);
  }
}

// Adds up the chunks of a long run from its first, by a warp.
template <bool kUpdates, int kColumns>
__device__ void SumLongRun(const Backward& backward, const BackwardTable& table, int32_t begin) {
  using Part = Columns<kColumns>;
  const Group group(32);
  const int32_t t = static_cast<int32_t>(&table - backward.tables);
  const int32_t run = backward.first_runs[t] + LastNotAbove(backward.run_starts + backward.first_runs[t],
                                                            backward.first_runs[t + 1] - backward.first_runs[t], begin);
  const int32_t end = backward.run_starts[run + 1];
  RunTarget<kUpdates, kColumns> all = {backward, table, group, 0, false, 0, 0.0f, {}};
  ForColumns(&all, [&](RunTarget<kUpdates, kColumns>* target) {
    Part sum = {};
    const int32_t window = begin / RH_GRADIENT_CHUNK;
    if (target->active) sum = *reinterpret_cast<const Part*>(PartialOf(backward, window, 1) + target->column);
    const int32_t num_chunks = (end - begin + RH_GRADIENT_CHUNK - 1) / RH_GRADIENT_CHUNK;
#pragma unroll 8
    for (int32_t chunk = 1; chunk < num_chunks; ++chunk) {
      if (!target->active) break;
      const Part part = *reinterpret_cast<const Part*>(PartialOf(backward, window + chunk, 0) + target->column);
      for (int c = 0; c < kColumns; ++c) sum.value[c] = sum.value[c] + part.value[c];
    }
    target->Close(run, sum);
  });
}

// A warp owns a slot.
static __global__ void SumChunks(const __grid_constant__ Backward backward) {
  const int32_t warp = static_cast<int32_t>(GlobalThread() / 32);
  const int32_t window = warp / 2;
  if (static_cast<int64_t>(window) * RH_GRADIENT_CHUNK >= backward.num_ids || backward.lookup.Failed()) return;
  const Chunk chunk = FindChunk(backward, window, warp % 2);
  if (chunk.begin < 0) return;
  const BackwardTable& table = backward.tables[backward.TableOf(backward.keys[chunk.begin])];
  float* partial = PartialOf(backward, window, warp % 2);
  table.columns == 4 ? SumChunk<4>(backward, table, chunk, partial) : SumChunk<1>(backward, table, chunk, partial);
}

// A warp owns the run whose first chunk lies in a window's slot 1.
template <bool kUpdates>
__global__ void SumLongRuns(const __grid_constant__ Backward backward) {
  const int32_t window = static_cast<int32_t>(GlobalThread() / 32);
  if (static_cast<int64_t>(window) * RH_GRADIENT_CHUNK >= backward.num_ids || backward.lookup.Failed()) return;
  const Chunk chunk = FindChunk(backward, window, 1);
  if (chunk.begin < 0) return;
  const BackwardTable& table = backward.tables[backward.TableOf(backward.keys[chunk.begin])];
  table.columns == 4 ? SumLongRun<kUpdates, 4>(backward, table, chunk.begin)
                     : SumLongRun<kUpdates, 1>(backward, table, chunk.begin);
}

template <bool kUpdates>
void SumRuns(const Backward& backward, cudaStream_t stream) {
  constexpr int64_t kWarps = kBlockThreads / 32;
  const int64_t num_windows = DivideUp(backward.num_ids, RH_GRADIENT_CHUNK);
  if (backward.num_ids == 0) return;
  if (backward.num_ids > RH_GRADIENT_CHUNK) Launch(SumChunks, DivideUp(2 * num_windows, kWarps), stream, backward);
  const int64_t most_items = DivideUp(backward.num_ids, kRunsPerGroup) + backward.num_tables;
  Launch(SumAllShortRuns<kUpdates>, std::min(BusyBlocks(), most_items), stream, backward);
  if (backward.num_ids > RH_GRADIENT_CHUNK) {
    Launch(SumLongRuns<kUpdates>, DivideUp(num_windows, kWarps), stream, backward);
  }
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_SUM_RUNS_CUH_
