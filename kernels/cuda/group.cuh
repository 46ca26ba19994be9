// Groups of threads that share rows, and what each of them holds of a row.
#ifndef RANKHOUSE_CUDA_GROUP_CUH_
#define RANKHOUSE_CUDA_GROUP_CUH_

#include "cuda/device.cuh"

namespace rankhouse {

// Neighbouring columns of a row that one thread reads and writes at once.
template <int kColumns>
struct alignas(kColumns * sizeof(float)) Columns {
  float value[kColumns];
};
// 8 columns are written as two times 16 bytes, the most that one instruction takes.
template <>
struct alignas(16) Columns<8> {
  float value[8];
};

inline bool IsAligned(const void* address, int64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

// True where rows of `dim` floats, `stride` apart, can be read and written as Columns<4>.
inline bool ByFour(const void* rows, int64_t stride, int64_t dim) {
  return IsAligned(rows, 16) && stride % 4 == 0 && dim % 4 == 0;
}

// Loads that one thread of a group has in flight at the same time.
constexpr int kUnroll = 4;

// How many threads share a row: a power of two up to a warp, at least kUnroll.
inline int LanesPerRow(int64_t dim, int columns_per_lane) {
  int lanes = kUnroll;
  while (lanes < 32 && lanes * columns_per_lane < dim) lanes *= 2;
  return lanes;
}

// `lanes` neighbouring threads of a warp, a power of two. They take the same branches.
struct Group {
  int lanes;
  int lane;
  unsigned mask;

  __device__ explicit Group(int lanes)
      : lanes(lanes),
        lane(static_cast<int>(threadIdx.x) & (lanes - 1)),
        mask((0xffffffffu >> (32 - lanes)) << ((threadIdx.x & 31) & ~static_cast<unsigned>(lanes - 1))) {}

  // Its index in the block, and how many groups a block has.
  __device__ int index() const { return static_cast<int>(threadIdx.x) / lanes; }
  __device__ int per_block() const { return kBlockThreads / lanes; }

  // The value of the thread `source` of the group.
  template <typename T>
  __device__ T Shuffle(T value, int source) const {
    return __shfl_sync(mask, value, source, lanes);
  }
  __device__ const char* Shuffle(const char* address, int source) const {
    return reinterpret_cast<const char*>(Shuffle(reinterpret_cast<unsigned long long>(address), source));
  }
  __device__ bool Any(bool value) const { return __any_sync(mask, value) != 0; }

  // The sum over the group, always in the same order; every thread gets it.
  __device__ float Sum(float value) const {
    for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(mask, value, step, lanes);
    return value;
  }
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_GROUP_CUH_
