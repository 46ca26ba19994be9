#include "cpu/combine_runs.h"

#include <algorithm>
#include <type_traits>

#include "cpu/simd.h"

namespace rankhouse {
namespace {

// The widest vector register; the compiler makes several narrower ones of it where there is none so wide.
struct WideLanes {
  static constexpr int64_t kCount = 16;
  typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
  typedef int32_t Mask __attribute__((vector_size(64)));
};

// Of rows that do not fill it.
struct NarrowLanes {
  static constexpr int64_t kCount = 8;
  typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));
  typedef int32_t Mask __attribute__((vector_size(32)));
};

template <int64_t kDim>
using LanesOf = std::conditional_t<kDim % WideLanes::kCount == 0, WideLanes, NarrowLanes>;

// Widths without a loop of their own are added up in blocks of this many columns.
constexpr int64_t kMaxColumns = 256;

// Columns of a row of the gradient to prefetch: the processor's own prefetcher follows wider rows by itself.
constexpr int64_t kMaxPrefetched = 64;

// Columns to prefetch of what is used of an id.
constexpr int64_t kMaxPrefetchedUse = 128;

// Into which cache: 3 the first level, 2 the second. What is used later than the next few keys goes to the second,
// which waits for more lines at once, and has room for them.
constexpr int kFirstLevel = 3;
constexpr int kSecondLevel = 2;

// Runs of more keys than this are added up by themselves.
constexpr int64_t kManyKeys = 16;

// How many keys ahead to prefetch: about as many lines as a core can wait for at once.
constexpr int64_t KeysAhead(int64_t dim) {
  const int64_t lines = (dim + 15) / 16;
  return lines <= 1 ? 24 : lines == 2 ? 16 : lines <= 4 ? 12 : 8;
}

// Where the contribution of a key comes from, one struct for each kind of source.
struct OneFeature {
  explicit OneFeature(const TableIds& table)
      : grad(table.features->grad),
        stride(table.features->stride),
        scale(table.features->scale),
        mask((uint64_t{1} << table.source_bits) - 1) {}
  RH_INLINE const float* Row(uint64_t key) const { return grad + static_cast<int64_t>(key & mask) * stride; }
  RH_INLINE float Scale(uint64_t) const { return scale; }
  RH_INLINE void Prefetch(uint64_t) const {}

  const float* grad;
  int64_t stride;
  float scale;
  uint64_t mask;
};

struct ManyFeatures {
  explicit ManyFeatures(const TableIds& table)
      : features(table.features),
        row_bits(table.row_bits),
        mask((uint64_t{1} << table.source_bits) - 1),
        row_mask((uint64_t{1} << table.row_bits) - 1) {}
  RH_INLINE const FeatureSource& Source(uint64_t key) const { return features[(key & mask) >> row_bits]; }
  RH_INLINE int64_t RowNumber(uint64_t key) const { return static_cast<int64_t>(key & row_mask); }
  RH_INLINE const float* Row(uint64_t key) const {
    const FeatureSource& source = Source(key);
    return source.grad + RowNumber(key) * source.stride;
  }
  RH_INLINE float Scale(uint64_t key) const { return Source(key).scale; }
  RH_INLINE void Prefetch(uint64_t) const {}

  const FeatureSource* features;
  int row_bits;
  uint64_t mask;
  uint64_t row_mask;
};

struct Bags : ManyFeatures {
  using ManyFeatures::ManyFeatures;
  RH_INLINE float Scale(uint64_t key) const { return Source(key).bag_scales[RowNumber(key)]; }
  RH_INLINE void Prefetch(uint64_t key) const { __builtin_prefetch(Source(key).bag_scales + RowNumber(key)); }
};

struct Positions {
  explicit Positions(const TableIds& table)
      : contributions(table.contributions), mask((uint64_t{1} << table.source_bits) - 1) {}
  RH_INLINE const float* Row(uint64_t key) const { return contributions[key & mask].row; }
  RH_INLINE float Scale(uint64_t key) const { return contributions[key & mask].scale; }
  RH_INLINE void Prefetch(uint64_t key) const { __builtin_prefetch(contributions + (key & mask)); }

  const Contribution* contributions;
  uint64_t mask;
};

template <int kLevel>
RH_INLINE void PrefetchFloats(const float* row, int64_t num_floats) {
  for (int64_t d = 0; d < num_floats; d += 16) __builtin_prefetch(row + d, 0, kLevel);
}

// Starts loading what is used of an id.
template <int64_t kDim>
RH_INLINE void PrefetchUsed(const UsedRows& used, int64_t id, int64_t table_dim) {
  const int64_t dim = kDim > 0 ? kDim : table_dim;
  const int64_t num_floats = std::min(dim, kMaxPrefetchedUse);
  for (int k = 0; k < used.num_rows; ++k) PrefetchFloats<kSecondLevel>(used.rows[k] + id * dim, num_floats);
  if (used.narrow_rows != nullptr) {
    const char* row = used.narrow_rows + id * dim * 2;
    for (int64_t byte = 0; byte < 2 * num_floats; byte += 64) __builtin_prefetch(row + byte, 0, kSecondLevel);
  }
  for (int k = 0; k < used.num_numbers; ++k) __builtin_prefetch(used.numbers[k] + id * 4);
}

// What a loop over keys prefetches: the row of the gradient that comes kAhead keys later, and before what it is found
// by.
template <typename Sources, int64_t kAhead>
RH_INLINE void PrefetchSource(const Sources& sources, const uint64_t* key, const uint64_t* last, int64_t dim) {
  if (key + 2 * kAhead < last) sources.Prefetch(key[2 * kAhead]);
  if (key + kAhead < last) PrefetchFloats<kFirstLevel>(sources.Row(key[kAhead]), std::min(dim, kMaxPrefetched));
}

// sum [dim] = the sum of a chunk's columns from `column` on.
template <typename Sources, int64_t kDim>
RH_INLINE void CombineChunk(const Sources& sources, const uint64_t* begin, const uint64_t* end, const uint64_t* last,
                            int64_t column, int64_t num_columns, float* __restrict sum) {
  constexpr int64_t kAhead = KeysAhead(kDim == 0 ? 128 : kDim);
  if constexpr (kDim > 0) {
    using Vector = typename LanesOf<kDim>::Vector;
    constexpr int64_t kVectors = kDim / LanesOf<kDim>::kCount;
    Vector total[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) total[v] = Vector{};
    for (const uint64_t* key = begin; key < end; ++key) {
      PrefetchSource<Sources, kAhead>(sources, key, last, kDim);
      const float* row = sources.Row(*key);
      const float scale = sources.Scale(*key);
      for (int64_t v = 0; v < kVectors; ++v) {
        const Vector part = scale * reinterpret_cast<const Vector*>(row)[v];
        total[v] = key == begin ? part : total[v] + part;
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) reinterpret_cast<Vector*>(sum)[v] = total[v];
  } else {
    for (const uint64_t* key = begin; key < end; ++key) {
      PrefetchSource<Sources, kAhead>(sources, key, last, std::min<int64_t>(num_columns, 128));
      const float* __restrict row = sources.Row(*key) + column;
      const float scale = sources.Scale(*key);
      if (key == begin) {
        for (int64_t d = 0; d < num_columns; ++d) sum[d] = scale * row[d];
      } else {
        for (int64_t d = 0; d < num_columns; ++d) sum[d] += scale * row[d];
      }
    }
  }
}

// sum [dim] = the sum of a run.
template <typename Sources, int64_t kDim>
RH_INLINE void CombineRun(const Sources& sources, const uint64_t* begin, const uint64_t* end, const uint64_t* last,
                          int64_t dim, float* __restrict sum) {
  float partial[kDim > 0 ? kDim : kMaxColumns];
  for (int64_t column = 0; column < dim; column += kMaxColumns) {
    const int64_t num_columns = kDim > 0 ? kDim : std::min(kMaxColumns, dim - column);
    const uint64_t* chunk_end = std::min(begin + RH_GRADIENT_CHUNK, end);
    CombineChunk<Sources, kDim>(sources, begin, chunk_end, last, column, num_columns, sum + column);
    for (const uint64_t* chunk = chunk_end; chunk < end; chunk = chunk_end) {
      chunk_end = std::min(chunk + RH_GRADIENT_CHUNK, end);
      CombineChunk<Sources, kDim>(sources, chunk, chunk_end, last, column, num_columns, partial);
      for (int64_t d = 0; d < num_columns; ++d) sum[column + d] += partial[d];
    }
  }
}

// The end of a run that holds key[kManyKeys]: looks at ever larger steps before it searches.
RH_INLINE const uint64_t* LongRunEnd(const uint64_t* key, const uint64_t* last, int source_bits) {
  const uint64_t id = *key >> source_bits;
  int64_t step = kManyKeys;
  while (key + 2 * step < last && key[2 * step] >> source_bits == id) step *= 2;
  const uint64_t* end = std::min(key + 2 * step, last);
  return std::upper_bound(key + step, end, *key | ((uint64_t{1} << source_bits) - 1));
}

// A pass over keys, not runs, so that no branch depends on where a run ends: most are short, and a processor cannot
// foresee it. The sum so far is written after each key, and a run's last write stays. What starts a run is -0, which
// changes no sum: unlike 0 it leaves a first contribution of -0 alone. Runs of many keys are added up by themselves.
template <typename Sources, int64_t kDim>
RH_INLINE int64_t CombineRunsOf(const TableIds& table, const UsedRows* used, const uint64_t** first,
                                const uint64_t* stop, int64_t max_runs, int64_t* ids, float* rows) {
  using Vector = typename LanesOf<kDim>::Vector;
  using Mask = typename LanesOf<kDim>::Mask;
  constexpr int64_t kVectors = kDim / LanesOf<kDim>::kCount;
  constexpr int64_t kAhead = KeysAhead(kDim);
  const Sources sources(table);
  const int source_bits = table.source_bits;
  const uint64_t* const last = table.keys + table.num_keys;
  const UsedRows uses = used != nullptr ? *used : UsedRows{};
  const Mask sign = Mask{} + static_cast<int32_t>(0x80000000);
  const uint64_t* key = *first;
  Mask keep = {};  // all ones inside a run
  Mask sum[kVectors] = {};
  uint64_t id = *key >> source_bits;
  int64_t num_runs = 0;
  while (num_runs < max_runs) {
    if (key + kManyKeys < last && key[kManyKeys] >> source_bits == id) {
      // This key begins a run of many: had it begun before, this would have been seen there.
      const uint64_t* end = LongRunEnd(key, last, source_bits);
      if (end - key >= kLongRun) break;
      for (const uint64_t* next = end; next < std::min(end + kAhead, last); ++next) {
        PrefetchUsed<kDim>(uses, static_cast<int64_t>(*next >> source_bits), kDim);
      }
      ids[num_runs] = static_cast<int64_t>(id);
      CombineRun<Sources, kDim>(sources, key, end, last, kDim, rows + num_runs * kDim);
      ++num_runs;
      key = end;
      if (key >= stop) break;
      id = *key >> source_bits;
      continue;
    }
    PrefetchSource<Sources, kAhead>(sources, key, last, kDim);
    if (key + kAhead < last) PrefetchUsed<kDim>(uses, static_cast<int64_t>(key[kAhead] >> source_bits), kDim);
    const float* row = sources.Row(*key);
    const float scale = sources.Scale(*key);
    float* out = rows + num_runs * kDim;
    for (int64_t v = 0; v < kVectors; ++v) {
      const Mask start = (sum[v] & keep) | (sign & ~keep);
      const Vector total = (Vector)start + scale * reinterpret_cast<const Vector*>(row)[v];
      reinterpret_cast<Vector*>(out)[v] = total;
      sum[v] = (Mask)total;
    }
    ids[num_runs] = static_cast<int64_t>(id);
    const uint64_t next_id = key + 1 < last ? key[1] >> source_bits : ~uint64_t{0};
    const int32_t ends = next_id != id ? 1 : 0;
    num_runs += ends;
    keep = Mask{} + (ends - 1);
    id = next_id;
    ++key;
    if (key >= stop && ends != 0) break;
  }
  *first = key;
  return num_runs;
}

// For any width: a pass over runs.
template <typename Sources>
RH_INLINE int64_t CombineWideRuns(const TableIds& table, const UsedRows* used, const uint64_t** first,
                                  const uint64_t* stop, int64_t max_runs, int64_t* ids, float* rows) {
  constexpr int64_t kAhead = KeysAhead(128);
  const Sources sources(table);
  const uint64_t* const last = table.keys + table.num_keys;
  const uint64_t* key = *first;
  int64_t num_runs = 0;
  for (; num_runs < max_runs && key < stop; ++num_runs) {
    const uint64_t id = *key >> table.source_bits;
    const uint64_t* chunk_end = std::min(key + RH_GRADIENT_CHUNK, last);
    const uint64_t* end = key + 1;
    while (end < chunk_end && *end >> table.source_bits == id) ++end;
    if (end == chunk_end) end = table.RunEnd(key);
    if (end - key >= kLongRun) break;
    if (used != nullptr && key + kAhead < last) {
      PrefetchUsed<0>(*used, static_cast<int64_t>(key[kAhead] >> table.source_bits), table.dim);
    }
    ids[num_runs] = static_cast<int64_t>(id);
    CombineRun<Sources, 0>(sources, key, end, last, table.dim, rows + num_runs * table.dim);
    key = end;
  }
  *first = key;
  return num_runs;
}

template <typename Sources>
RH_INLINE int64_t CombineRunsFrom(const TableIds& table, const UsedRows* used, const uint64_t** key,
                                  const uint64_t* stop, int64_t max_runs, int64_t* ids, float* rows) {
  switch (table.dim) {
    case 8:
      return CombineRunsOf<Sources, 8>(table, used, key, stop, max_runs, ids, rows);
    case 16:
      return CombineRunsOf<Sources, 16>(table, used, key, stop, max_runs, ids, rows);
    case 32:
      return CombineRunsOf<Sources, 32>(table, used, key, stop, max_runs, ids, rows);
    case 64:
      return CombineRunsOf<Sources, 64>(table, used, key, stop, max_runs, ids, rows);
    case 128:
      return CombineRunsOf<Sources, 128>(table, used, key, stop, max_runs, ids, rows);
    default:
      return CombineWideRuns<Sources>(table, used, key, stop, max_runs, ids, rows);
  }
}

template <typename Sources>
RH_INLINE void CombineChunksFrom(const TableIds& table, const uint64_t* begin, const uint64_t* end, float* sums) {
  const Sources sources(table);
  const uint64_t* const last = table.keys + table.num_keys;
  for (const uint64_t* chunk = begin; chunk < end; chunk += RH_GRADIENT_CHUNK, sums += table.dim) {
    const uint64_t* chunk_end = std::min(chunk + RH_GRADIENT_CHUNK, end);
    if (table.dim == 128) {
      CombineChunk<Sources, 128>(sources, chunk, chunk_end, last, 0, 128, sums);
    } else if (table.dim == 16) {
      CombineChunk<Sources, 16>(sources, chunk, chunk_end, last, 0, 16, sums);
    } else if (table.dim == 8) {
      CombineChunk<Sources, 8>(sources, chunk, chunk_end, last, 0, 8, sums);
    } else {
      CombineRun<Sources, 0>(sources, chunk, chunk_end, last, table.dim, sums);
    }
  }
}

}  // namespace

RH_SIMD int64_t CombineRuns(const TableIds& table, const UsedRows* used, const uint64_t** key, const uint64_t* stop,
                            int64_t max_runs, int64_t* ids, float* rows) {
  switch (table.kind) {
    case SourceKind::kFeature:
      return table.num_features == 1 ? CombineRunsFrom<OneFeature>(table, used, key, stop, max_runs, ids, rows)
                                     : CombineRunsFrom<ManyFeatures>(table, used, key, stop, max_runs, ids, rows);
    case SourceKind::kBag:
      return CombineRunsFrom<Bags>(table, used, key, stop, max_runs, ids, rows);
    default:
      return CombineRunsFrom<Positions>(table, used, key, stop, max_runs, ids, rows);
  }
}

RH_SIMD void CombineChunks(const TableIds& table, const uint64_t* begin, const uint64_t* end, float* sums) {
  switch (table.kind) {
    case SourceKind::kFeature:
      return table.num_features == 1 ? CombineChunksFrom<OneFeature>(table, begin, end, sums)
                                     : CombineChunksFrom<ManyFeatures>(table, begin, end, sums);
    case SourceKind::kBag:
      return CombineChunksFrom<Bags>(table, begin, end, sums);
    default:
      return CombineChunksFrom<Positions>(table, begin, end, sums);
  }
}

}  // namespace rankhouse
