// What all CUDA operations stand on: errors, workspaces and launches.
#ifndef RANKHOUSE_CUDA_DEVICE_CUH_
#define RANKHOUSE_CUDA_DEVICE_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/status.h"

namespace rankhouse {

// Throws RH_CUDA_ERROR with CUDA's message and what was tried.
inline void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // leaves no error behind for the caller's next call to find
  throw Error(RH_CUDA_ERROR, StrCat(what, " failed: ", cudaGetErrorString(error)));
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

  template <typename T>
  T* Take(int64_t count) {
    const int64_t begin = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    Require(data_ == nullptr || used_ <= bytes_, "workspace has ", bytes_,
            " bytes: expected what the *_workspace_cuda ", "function of this call says for these arguments");
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
  CheckCuda(cudaMemsetAsync(faults, 0xff, count * sizeof(Fault), stream), "clearing the workspace");
}

template <typename T>
void CopyToDevice(T* device, const T* host, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  // From pageable memory: CUDA has taken the data when the call returns.
  CheckCuda(cudaMemcpyAsync(device, host, count * sizeof(T), cudaMemcpyHostToDevice, stream), "copying to the device");
}

template <typename T>
void CopyToHost(T* host, const T* device, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  CheckCuda(cudaMemcpyAsync(host, device, count * sizeof(T), cudaMemcpyDeviceToHost, stream), "copying to the host");
  CheckCuda(cudaStreamSynchronize(stream), "waiting for the stream");
}

constexpr int kBlockThreads = 256;

// Launches `kernel` with at least num_threads threads in blocks of kBlockThreads; does nothing for 0.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), int64_t num_threads, cudaStream_t stream, Arguments... arguments) {
  const int64_t num_blocks = (num_threads + kBlockThreads - 1) / kBlockThreads;
  if (num_blocks == 0) return;
  Require(num_blocks <= std::numeric_limits<int32_t>::max(), "the call needs ", num_blocks,
          " blocks of threads, more than a launch takes: split the batch");
  kernel<<<static_cast<unsigned>(num_blocks), kBlockThreads, 0, stream>>>(arguments...);
  CheckCuda(cudaGetLastError(), "launching a kernel");
}

__device__ inline int64_t GlobalThread() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

// Neighbouring columns of a row that one thread reads and writes at once.
template <int kColumns>
struct alignas(kColumns * sizeof(float)) Columns {
  float value[kColumns];
};

// True where Columns<4> can be read and written.
inline bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

// How many threads share a row: a power of two up to a warp, enough for the widest row of `max_dim` columns.
inline int LanesPerRow(int64_t max_dim, int columns_per_lane) {
  int lanes = 1;
  while (lanes < 32 && lanes * columns_per_lane < max_dim) lanes *= 2;
  return lanes;
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_DEVICE_CUH_
