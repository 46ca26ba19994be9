// The loops of pool_rows.h, written once over a Simd type that names the vectors of an instruction set. Included by one
// file for each, which is compiled for that instruction set: everything here is local to it, and nothing from elsewhere
// is instantiated, so that no code for one processor reaches another.
//
// A loop keeps the sums of its columns in registers. It owns a run of bags, and adds their rows in the order of their
// ids; products are rounded before they are added.
#ifndef RANKHOUSE_CPU_POOL_LOOPS_H_
#define RANKHOUSE_CPU_POOL_LOOPS_H_

#include "cpu/pool_rows.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

constexpr int64_t kLineBytes = 64;

constexpr int64_t ElementBytes(int32_t type) { return type == RH_FLOAT32 ? 4 : type == RH_INT8_ROWWISE ? 1 : 2; }

// How many rows ahead to prefetch: about as many lines as a core can wait for at once.
constexpr int64_t RowsAhead(int64_t lines) {
  return lines == 1 ? 32 : lines == 2 ? 16 : lines <= 4 ? 10 : lines <= 8 ? 6 : 4;
}

// The loop's columns of one row, read by vectors and converted.
template <typename Simd, int32_t kType, int kVectors, bool kTail>
struct RowReader {
  using Vector = typename Simd::Vector;

  RH_INLINE RowReader(const char* row, int64_t column, int64_t dim)
      : data(row + column * ElementBytes(kType)), scale(Simd::Zero()), offset(Simd::Zero()) {
    if (kType != RH_INT8_ROWWISE) return;
    float scale_and_offset[2];
    __builtin_memcpy(scale_and_offset, row + dim, sizeof(scale_and_offset));
    scale = Simd::Broadcast(scale_and_offset[0]);
    offset = Simd::Broadcast(scale_and_offset[1]);
  }

  RH_INLINE Vector Read(int v, int64_t tail) const {
    const char* from = data + v * Simd::kLanes * ElementBytes(kType);
    const Vector value =
        kTail && v == kVectors - 1 ? Simd::template LoadTail<kType>(from, tail) : Simd::template Load<kType>(from);
    return kType == RH_INT8_ROWWISE ? Simd::Add(Simd::Multiply(value, scale), offset) : value;
  }

  const char* data;
  Vector scale;
  Vector offset;
};

// What the sum of a bag is multiplied with; 0 stands for a result of zeros.
template <bool kWeighted>
RH_INLINE float Scale(const BagRun& run, int64_t num_rows, float weights) {
  const bool by_weights = kWeighted && run.weighting == RH_WEIGHTING_TENSORFLOW;
  float divisor = by_weights ? weights : static_cast<float>(num_rows);
  if (run.combiner == RH_SQRTN) divisor = __builtin_sqrtf(divisor);
  return divisor == 0.0f ? 0.0f : 1.0f / divisor;
}

// From ids to rows, every id checked. Rows that come later are prefetched, whatever their ids: a prefetch never faults.
template <typename Id, int64_t kBytes>
struct RowFinder {
  static constexpr int64_t kAhead = RowsAhead((kBytes + kLineBytes - 1) / kLineBytes);

  RH_INLINE RowFinder(const BagRun& run, int64_t column, int64_t column_bytes)
      : run(run),
        ids(static_cast<const Id*>(run.ids)),
        rows(run.feature->rows),
        num_rows(static_cast<uint64_t>(run.feature->num_rows)),
        stride(static_cast<uint64_t>(run.feature->stride)),
        last_ahead(run.feature->last_id - kAhead),
        column(column),
        column_bytes(column_bytes),
        straddles(run.straddles) {}

  RH_INLINE const char* Address(Id id) const {
    const uint64_t row = static_cast<uint64_t>(static_cast<int64_t>(id));
    return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(rows) + row * stride);
  }

  RH_INLINE void Prefetch(int64_t position) const {
    // A number, as sums with the pointer that a wild id gives may overflow.
    const uintptr_t address =
        reinterpret_cast<uintptr_t>(Address(ids[position < last_ahead ? position + kAhead : position])) +
        static_cast<uintptr_t>(column_bytes);
    for (int64_t byte = 0; byte < kBytes; byte += kLineBytes) {
      __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<uintptr_t>(byte)));
    }
    if (straddles) __builtin_prefetch(reinterpret_cast<const void*>(address + kBytes - 1));
  }

  RH_INLINE const char* Find(int64_t position) const {
    const Id id = ids[position];
    if (__builtin_expect(static_cast<uint64_t>(static_cast<int64_t>(id)) >= num_rows, 0)) {
      return RowOfBadId(run, position, id, column);
    }
    return Address(id);
  }

  const BagRun& run;
  const Id* ids;
  const char* rows;
  uint64_t num_rows;
  uint64_t stride;
  int64_t last_ahead;
  int64_t column;
  int64_t column_bytes;
  bool straddles;
};

template <typename Simd, typename Id, int32_t kType, PoolMode kMode, int kVectors, bool kTail>
struct Pool {
  using Vector = typename Simd::Vector;
  using Reader = RowReader<Simd, kType, kVectors, kTail>;
  using Finder = RowFinder<Id, kVectors * Simd::kLanes * ElementBytes(kType)>;
  static constexpr bool kWeighted = kMode == kAddWeightedRows;

  RH_INLINE static void Store(float* out, const Vector* sum, int64_t tail) {
    for (int v = 0; v < kVectors; ++v) {
      if (kTail && v == kVectors - 1) {
        Simd::StoreTail(out + v * Simd::kLanes, sum[v], tail);
      } else {
        Simd::Store(out + v * Simd::kLanes, sum[v]);
      }
    }
  }

  template <bool kStreams>
  RH_INLINE static void Copy(const BagRun& run, const Finder& finder, int64_t tail) {
    // Copies of what the run says: the compiler cannot know that writing `out` leaves the run alone.
    const int64_t stride = run.stride;
    const int64_t dim = run.feature->dim;
    const int64_t end = run.first_id + run.num_bags;
    float* out = run.out + finder.column;
    for (int64_t position = run.first_id; position < end; ++position, out += stride) {
      finder.Prefetch(position);
      const Reader row(finder.Find(position), finder.column, dim);
      Vector value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = row.Read(v, tail);
      if (kStreams) {
        for (int v = 0; v < kVectors; ++v) Simd::Stream(out + v * Simd::kLanes, value[v]);
      } else {
        Store(out, value, tail);
      }
    }
    if (kStreams) Simd::EndStream();
  }

  RH_INLINE static void AddBags(const BagRun& run, const Finder& finder, int64_t tail) {
    float* out = run.out + finder.column;
    int64_t position = run.offsets != nullptr ? run.offsets[0] : run.first_id;
    for (int64_t bag = 0; bag < run.num_bags; ++bag, out += run.stride) {
      const int64_t end = run.offsets != nullptr ? run.offsets[bag + 1] : position + run.hotness;
      const int64_t num_rows = end - position;
      Vector sum[kVectors];
      // -0 is what changes no sum: unlike 0 it leaves a first row of -0 alone.
      for (int v = 0; v < kVectors; ++v) sum[v] = Simd::Broadcast(-0.0f);
      float weights = -0.0f;
      for (; position < end; ++position) {
        finder.Prefetch(position);
        const Reader row(finder.Find(position), finder.column, run.feature->dim);
        if (kWeighted) {
          const float weight = run.weights[position];
          const Vector factor = Simd::Broadcast(weight);
          for (int v = 0; v < kVectors; ++v) sum[v] = Simd::Add(sum[v], Simd::Multiply(factor, row.Read(v, tail)));
          weights += run.combiner == RH_SQRTN ? weight * weight : weight;
        } else {
          for (int v = 0; v < kVectors; ++v) sum[v] = Simd::Add(sum[v], row.Read(v, tail));
        }
      }
      Finish(run, num_rows, weights, sum);
      Store(out, sum, tail);
    }
  }

  RH_INLINE static void Finish(const BagRun& run, int64_t num_rows, float weights, Vector* sum) {
    if (num_rows == 0) {
      for (int v = 0; v < kVectors; ++v) sum[v] = Simd::Zero();
    } else if (run.combiner != RH_SUM && (kWeighted || num_rows != 1)) {
      const float scale = Scale<kWeighted>(run, num_rows, weights);
      const Vector factor = Simd::Broadcast(scale);
      for (int v = 0; v < kVectors; ++v) sum[v] = scale == 0.0f ? Simd::Zero() : Simd::Multiply(sum[v], factor);
    }
  }

  static void Run(const BagRun& run, int64_t column) {
    // Columns of the last vector. Those of a row that is wider than all loops together belong to the next one.
    const int64_t left = run.feature->dim - column - (kVectors - 1) * Simd::kLanes;
    const int64_t tail = left < Simd::kLanes ? left : Simd::kLanes;
    const Finder finder(run, column, column * ElementBytes(kType));
    if (kMode != kCopyRows) {
      AddBags(run, finder, tail);
    } else if (!kTail && run.streams) {
      Copy<true>(run, finder, tail);
    } else {
      Copy<false>(run, finder, tail);
    }
  }
};

template <typename Simd, typename Id, int32_t kType, PoolMode kMode, int kVectors = 1>
PoolLoop LoopOf(int64_t columns) {
  if constexpr (kVectors > (kType == RH_FLOAT32 ? Simd::kMaxFloatVectors : Simd::kMaxVectors)) {
    return nullptr;
  } else {
    if (columns > kVectors * Simd::kLanes) return LoopOf<Simd, Id, kType, kMode, kVectors + 1>(columns);
    // A full last vector is a tail too. Only the most common rows have loops without one: there are many of these.
    if constexpr (kType == RH_FLOAT32) {
      if (columns == kVectors * Simd::kLanes) return Pool<Simd, Id, kType, kMode, kVectors, false>::Run;
    }
    return Pool<Simd, Id, kType, kMode, kVectors, true>::Run;
  }
}

template <typename Simd, typename Id, int32_t kType>
PoolLoop LoopOfMode(PoolMode mode, int64_t columns) {
  if (mode == kCopyRows) return LoopOf<Simd, Id, kType, kCopyRows>(columns);
  if (mode == kAddRows) return LoopOf<Simd, Id, kType, kAddRows>(columns);
  return LoopOf<Simd, Id, kType, kAddWeightedRows>(columns);
}

template <typename Simd, typename Id>
PoolLoop LoopOfRows(int32_t row_type, PoolMode mode, int64_t columns) {
  switch (row_type) {
    case RH_FLOAT32:
      return LoopOfMode<Simd, Id, RH_FLOAT32>(mode, columns);
    case RH_FLOAT16:
      return LoopOfMode<Simd, Id, RH_FLOAT16>(mode, columns);
    case RH_BFLOAT16:
      return LoopOfMode<Simd, Id, RH_BFLOAT16>(mode, columns);
    default:
      return LoopOfMode<Simd, Id, RH_INT8_ROWWISE>(mode, columns);
  }
}

template <typename Simd>
PoolLoop LoopOfIds(int32_t id_type, int32_t row_type, PoolMode mode, int64_t columns) {
  return id_type == RH_INT32 ? LoopOfRows<Simd, int32_t>(row_type, mode, columns)
                             : LoopOfRows<Simd, int64_t>(row_type, mode, columns);
}

template <typename Simd>
constexpr PoolLoops MakePoolLoops() {
  return {Simd::kLanes * Simd::kMaxFloatVectors, Simd::kLanes * Simd::kMaxVectors, LoopOfIds<Simd>};
}

}  // namespace
}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_POOL_LOOPS_H_
