// CUB's sort on the host; see cuda_runtime.h.
#ifndef RANKHOUSE_TESTS_CUDA_EMULATION_DEVICE_RADIX_SORT_CUH_
#define RANKHOUSE_TESTS_CUDA_EMULATION_DEVICE_RADIX_SORT_CUH_

#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

template <typename T>
class DoubleBuffer {
 public:
  DoubleBuffer(T* current, T* alternate) : buffers_{current, alternate} {}
  T* Current() const { return buffers_[selector_]; }
  T* Alternate() const { return buffers_[1 - selector_]; }
  void Swap() { selector_ = 1 - selector_; }

 private:
  T* buffers_[2];
  int selector_ = 0;
};

struct DeviceRadixSort {
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* temporary, size_t& bytes, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values,
                               int count, int begin_bit, int end_bit, cudaStream_t) {
    bytes = 1;
    if (temporary == nullptr) return cudaSuccess;
    const int num_bits = end_bit - begin_bit;
    const Key mask = num_bits >= static_cast<int>(8 * sizeof(Key)) ? ~Key{0} : (Key{1} << num_bits) - 1;
    const Key* from = keys.Current();
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return (from[a] >> begin_bit & mask) < (from[b] >> begin_bit & mask); });
    for (int n = 0; n < count; ++n) {
      keys.Alternate()[n] = from[order[n]];
      values.Alternate()[n] = values.Current()[order[n]];
    }
    keys.Swap();
    values.Swap();
    return cudaSuccess;
  }
};

}  // namespace cub

#endif  // RANKHOUSE_TESTS_CUDA_EMULATION_DEVICE_RADIX_SORT_CUH_
