// The loop that forward and backward share: it adds up rows that lie anywhere, segment by segment of a list.
//
// A group of threads owns some neighbouring segments (bags, or runs of equal ids), whose list entries lie side by side,
// and each of its threads some columns. Each thread resolves one entry of the next `lanes` (where its row lies and what
// it is multiplied with) and hands it to the others by shuffles; the next entries are read while these are worked on.
// The rows of kUnroll entries are in flight at the same time whatever segments they belong to, so that segments of one
// row are as fast as long ones. Nobody else adds to the group's sums, and each is made in the order of its entries.
#ifndef RANKHOUSE_CUDA_SEGMENTS_CUH_
#define RANKHOUSE_CUDA_SEGMENTS_CUH_

#include "core/row_types.h"
#include "cuda/group.cuh"

namespace rankhouse {

// An entry of the list: a row, NULL for one of zeros, and what it is multiplied with.
struct Entry {
  const char* row;
  float weight;
};

__device__ inline float HalfToFloat(uint16_t half) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  return Float16ToFloat(half);
#endif
}

// kColumns columns of a row as they lie in memory, and how they become numbers.
template <int32_t kType, int kColumns>
struct RowPart;

template <int kColumns>
struct RowPart<RH_FLOAT32, kColumns> {
  Columns<kColumns> bits;

  __device__ void Load(const char* row, int64_t column, int64_t) {
    bits = *reinterpret_cast<const Columns<kColumns>*>(row + column * sizeof(float));
  }
  __device__ float operator[](int c) const { return bits.value[c]; }
};

template <int32_t kType, int kColumns>
struct HalfRowPart {
  struct alignas(kColumns * sizeof(uint16_t)) Bits {
    uint16_t value[kColumns];
  };
  Bits bits;

  __device__ void Load(const char* row, int64_t column, int64_t) {
    bits = *reinterpret_cast<const Bits*>(row + column * sizeof(uint16_t));
  }
  __device__ float operator[](int c) const {
    return kType == RH_FLOAT16 ? HalfToFloat(bits.value[c]) : BFloat16ToFloat(bits.value[c]);
  }
};
template <int kColumns>
struct RowPart<RH_FLOAT16, kColumns> : HalfRowPart<RH_FLOAT16, kColumns> {};
template <int kColumns>
struct RowPart<RH_BFLOAT16, kColumns> : HalfRowPart<RH_BFLOAT16, kColumns> {};

template <int kColumns>
struct RowPart<RH_INT8_ROWWISE, kColumns> {
  struct alignas(kColumns) Bits {
    uint8_t value[kColumns];
  };
  Bits bits;
  float scale;
  float offset;

  __device__ static float LoadFloat(const char* address) {
    if (kColumns > 1) return *reinterpret_cast<const float*>(address);  // rows are aligned
    uint32_t bits = 0;
    for (int byte = 0; byte < 4; ++byte) bits |= uint32_t{static_cast<uint8_t>(address[byte])} << 8 * byte;
    return FloatOfBits(bits);
  }
  __device__ void Load(const char* row, int64_t column, int64_t dim) {
    bits = *reinterpret_cast<const Bits*>(row + column);
    scale = LoadFloat(row + dim);
    offset = LoadFloat(row + dim + sizeof(float));
  }
  __device__ float operator[](int c) const { return static_cast<float>(bits.value[c]) * scale + offset; }
};

// Adds up the columns from `column` on of the segments [first, last). `active` is false for a thread whose columns are
// behind the row's end: it only helps with the entries. Segments has
//   int32_t End(segment)                the end of its entries; its first is the end of the one before
//   Entry Resolve(entry)                called by one thread of the group for each entry
//   void Add(weight)                    called by all threads for each entry, in order
//   void Close(segment, count, sum)     called by all threads at the end of each segment
// A sum starts as -0, which changes nothing that is added to it. Entries are counted in 32 bits.
template <int32_t kType, int kColumns, typename Segments>
__device__ __forceinline__ void SumSegments(Segments& segments, const Group& group, int32_t first, int32_t last,
                                            int32_t position, int64_t column, int64_t dim, bool active) {
  const int32_t end = segments.End(last - 1);
  int32_t segment_begin = position;
  int32_t segment_end = segments.End(first);
  Columns<kColumns> sum;
  for (int c = 0; c < kColumns; ++c) sum.value[c] = -0.0f;
  const auto close_ended = [&](int32_t at) {
    while (at == segment_end && first < last) {
      segments.Close(first, segment_end - segment_begin, sum);
      for (int c = 0; c < kColumns; ++c) sum.value[c] = -0.0f;
      segment_begin = segment_end;
      if (++first < last) segment_end = segments.End(first);
    }
  };
  close_ended(position);
  Entry next = {nullptr, 0.0f};
  if (position + group.lane < end) next = segments.Resolve(position + group.lane);
  while (position < end) {
    const Entry mine = next;
    const int count = min(group.lanes, end - position);
    if (position + group.lanes + group.lane < end) next = segments.Resolve(position + group.lanes + group.lane);
    for (int i = 0; i < count; i += kUnroll, position += kUnroll) {
      RowPart<kType, kColumns> rows[kUnroll] = {};
      float weights[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const char* row = group.Shuffle(mine.row, i + u);
        weights[u] = group.Shuffle(mine.weight, i + u);
        if (active && i + u < count && row != nullptr) rows[u].Load(row, column, dim);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u >= count) break;
        for (int c = 0; c < kColumns; ++c) sum.value[c] = sum.value[c] + weights[u] * rows[u][c];
        segments.Add(weights[u]);
        close_ended(position + u + 1);
      }
    }
  }
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_SEGMENTS_CUH_
