// Sorting and cutting into runs, on CUB. In a file of its own, since CUB takes long to compile.
#ifndef RANKHOUSE_CUDA_SORT_CUH_
#define RANKHOUSE_CUDA_SORT_CUH_

#include <optional>

#include "cuda/device.cuh"

namespace rankhouse {

// Unsigned keys of 32 bits or (`wide`) 64.
struct Keys {
  const void* data;
  bool wide;

  __device__ uint64_t operator[](int64_t n) const {
    return wide ? static_cast<const uint64_t*>(data)[n] : static_cast<const uint32_t*>(data)[n];
  }
};

// [N] keys with values, and room to sort them.
struct SortBuffers {
  SortBuffers(Workspace* workspace, int64_t count, bool wide);

  // Sorts by the lowest `bits` bits of keys, stable, from keys[0] and values[0]. Afterwards the sorted ones are there.
  void Sort(int bits, cudaStream_t stream);

  // Writes into starts, increasing, the positions n where a run of equal keys begins (in sorted order), and into
  // num_runs how many there are. Keys of `no_key`, which are the last, are left out.
  void CutRuns(std::optional<uint64_t> no_key, int32_t* starts, int32_t* num_runs, cudaStream_t stream) const;

  Keys sorted() const { return {keys[0], wide}; }

  int32_t count;
  bool wide;
  void* keys[2];
  int32_t* values[2];
  size_t sort_bytes = 0;
  size_t select_bytes = 0;
  char* temporary = nullptr;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_SORT_CUH_
