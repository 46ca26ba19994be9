#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <utility>

#include "cuda/sort.cuh"

namespace rankhouse {
namespace {

// True where a run begins.
struct BeginsRun {
  Keys keys;
  uint64_t no_key;
  bool has_no_key;

  __device__ bool operator()(int32_t n) const {
    const uint64_t key = keys[n];
    return !(has_no_key && key == no_key) && (n == 0 || keys[n - 1] != key);
  }
};

template <typename Key>
cudaError_t SortPairs(void* temporary, size_t* bytes, SortBuffers* buffers, int bits, cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(static_cast<Key*>(buffers->keys[0]), static_cast<Key*>(buffers->keys[1]));
  cub::DoubleBuffer<int32_t> values(buffers->values[0], buffers->values[1]);
  const cudaError_t error =
      cub::DeviceRadixSort::SortPairs(temporary, *bytes, keys, values, buffers->count, 0, bits, stream);
  if (temporary != nullptr && keys.Current() != buffers->keys[0]) {
    std::swap(buffers->keys[0], buffers->keys[1]);
    std::swap(buffers->values[0], buffers->values[1]);
  }
  return error;
}

cudaError_t SelectRuns(void* temporary, size_t* bytes, BeginsRun begins, int32_t count, int32_t* starts,
                       int32_t* num_runs, cudaStream_t stream) {
  return cub::DeviceSelect::If(temporary, *bytes, thrust::counting_iterator<int32_t>(0), starts, num_runs, count,
                               begins, stream);
}

}  // namespace

SortBuffers::SortBuffers(Workspace* workspace, int64_t num_keys, bool wide)
    : count(static_cast<int32_t>(num_keys)), wide(wide) {
  for (int i = 0; i < 2; ++i) {
    keys[i] = wide ? static_cast<void*>(workspace->Take<uint64_t>(count))
                   : static_cast<void*>(workspace->Take<uint32_t>(count));
    values[i] = workspace->Take<int32_t>(count);
  }
  CheckCuda(wide ? SortPairs<uint64_t>(nullptr, &sort_bytes, this, 64, nullptr)
                 : SortPairs<uint32_t>(nullptr, &sort_bytes, this, 32, nullptr),
            "planning the sort");
  CheckCuda(SelectRuns(nullptr, &select_bytes, {sorted(), 0, false}, count, nullptr, nullptr, nullptr),
            "planning the runs");
  temporary = workspace->Take<char>(static_cast<int64_t>(std::max(sort_bytes, select_bytes)));
}

void SortBuffers::Sort(int bits, cudaStream_t stream) {
  if (count == 0 || bits == 0) return;
  CheckCuda(wide ? SortPairs<uint64_t>(temporary, &sort_bytes, this, bits, stream)
                 : SortPairs<uint32_t>(temporary, &sort_bytes, this, bits, stream),
            "sorting the ids");
}

void SortBuffers::CutRuns(std::optional<uint64_t> no_key, int32_t* starts, int32_t* num_runs,
                          cudaStream_t stream) const {
  CheckCuda(cudaMemsetAsync(num_runs, 0, sizeof(*num_runs), stream), "clearing the workspace");
  if (count == 0) return;
  size_t bytes = select_bytes;
  CheckCuda(SelectRuns(temporary, &bytes, {sorted(), no_key.value_or(0), no_key.has_value()}, count, starts, num_runs,
                       stream),
            "cutting the runs");
}

}  // namespace rankhouse
