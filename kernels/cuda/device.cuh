// What all CUDA operations stand on: errors, workspaces, launches, and groups of threads.
#ifndef RANKHOUSE_CUDA_DEVICE_CUH_
#define RANKHOUSE_CUDA_DEVICE_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/status.h"

namespace rankhouse {

// Throws RH_CUDA_ERROR with CUDA's message and what was tried.
inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // leaves no error behind for the caller's next call to find
  throw Error(RH_CUDA_ERROR, StrCat(what, " failed: ", cudaGetErrorString(error)));
}

// For a call that nobody can help if it fails. Its error must not stay behind: the thread's next call would find it.
inline void Ignore(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
}

// Hands out parts of a call's workspace. Without memory it only adds sizes up, so that one plan serves both for asking
// how much is needed and for using it.
class Workspace {
 public:
  Workspace() = default;
  Workspace(void* data, int64_t bytes) : data_(static_cast<char*>(data)), bytes_(bytes) {
    Require(data != nullptr && reinterpret_cast<uintptr_t>(data) % kAlignment == 0,
            "workspace is NULL or not aligned to ", kAlignment, " bytes");
  }

  // Reads what a call left in its workspace.
  static Workspace Of(const void* data) {
    return Workspace(const_cast<void*>(data), std::numeric_limits<int64_t>::max());
  }

  template <typename T>
  T* Take(int64_t count) {
    const int64_t begin = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    Require(data_ == nullptr || used_ <= bytes_, "workspace has ", bytes_,
            " bytes: expected what the *_workspace_cuda function of this call says for these arguments");
    return data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + begin);
  }

  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 256;

  char* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
};

// The first thing that kernels found wrong, as one number that is lower the earlier it comes; kNoFault if nothing is.
using Fault = unsigned long long;
constexpr Fault kNoFault = std::numeric_limits<Fault>::max();

// Sets `count` faults to kNoFault.
inline void ClearFaults(Fault* faults, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  CheckCuda(cudaMemsetAsync(faults, 0xff, count * sizeof(Fault), stream), "clearing the workspace");
}

// Copies to the device in arguments of kernels: unlike a copy from pageable memory that never waits for the stream, and
// graphs can record it.
void UploadBytes(void* device, const void* host, int64_t bytes, cudaStream_t stream);

template <typename T>
void Upload(T* device, const std::vector<T>& host, cudaStream_t stream) {
  UploadBytes(device, host.data(), static_cast<int64_t>(host.size() * sizeof(T)), stream);
}

// Waits for the stream.
template <typename T>
void CopyToHost(T* host, const T* device, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  CheckCuda(cudaMemcpyAsync(host, device, count * sizeof(T), cudaMemcpyDeviceToHost, stream), "copying to the host");
  CheckCuda(cudaStreamSynchronize(stream), "waiting for the stream");
}

constexpr int kBlockThreads = 256;

inline int64_t DivideUp(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Launches `kernel` in blocks of kBlockThreads; does nothing for 0 blocks.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), int64_t num_blocks, cudaStream_t stream, Arguments... arguments) {
  if (num_blocks == 0) return;
  Require(num_blocks <= std::numeric_limits<int32_t>::max(), "the call needs ", num_blocks,
          " blocks of threads, more than a launch takes: split the batch");
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(kBlockThreads);
  config.stream = stream;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
}

// How many blocks keep the current device busy, for kernels that find out by themselves how much there is to do.
inline int64_t BusyBlocks() {
  int device = 0;
  int processors = 0;
  CheckCuda(cudaGetDevice(&device), "asking for the device");
  CheckCuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for its size");
  return int64_t{8} * processors;
}

__device__ inline int64_t GlobalThread() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

// The index of the last of the rising numbers at(0) to at(count - 1), the first of which is <= value, that is <= value.
template <typename T, typename At>
__device__ inline int32_t LastNotAbove(int32_t count, T value, At at) {
  int32_t low = 0;
  int32_t high = count - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (at(middle) <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <typename T>
__device__ inline int32_t LastNotAbove(const T* numbers, int32_t count, T value) {
  return LastNotAbove(count, value, [=](int32_t i) { return numbers[i]; });
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_DEVICE_CUH_
