// As much of CUDA as Rankhouse's kernels use, on the host, so that their logic can be tested where no GPU is.
//
// The threads of a block are fibers that take turns in one thread; they change where they wait for each other (barriers
// and shuffles). Blocks run one after the other, and so do calls, also those of several threads of the host. So this
// finds wrong results, accesses out of bounds (with the compiler's sanitizers), threads that do not meet, and shuffles
// from threads that are not there; and what becomes of calls that fail (failing_calls.h). It does not find races, and
// says nothing about the hardware, its memory model or its speed.
#ifndef RANKHOUSE_TESTS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define RANKHOUSE_TESTS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "failing_calls.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // blocks take turns

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1) : x(x), y(1), z(1) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

// ---------------------------------------------------------------------------------------------------------------------
// Threads of a block
// ---------------------------------------------------------------------------------------------------------------------

namespace cuda_emulation {

[[noreturn]] inline void Fail(const char* what) {
  std::fprintf(stderr, "CUDA emulation: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
  std::abort();
}

// A meeting of the threads of a mask: each brings a value and sees those of the others.
struct Meeting {
  uint64_t values[32];
  unsigned arrived = 0, left = 0, number = 0;
};

struct Fiber {
  static constexpr size_t kStackBytes = 128 * 1024;

  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  void* fake_stack = nullptr;
  bool done = true;
};

class Block {
 public:
  static Block& Get() {
    static Block block;
    return block;
  }

  void Run(unsigned num_threads, const std::function<void()>& body) {
    while (fibers_.size() < num_threads) fibers_.push_back(std::make_unique<Fiber>());
    body_ = &body;
    num_threads_ = live_ = num_threads;
    meetings_.clear();
    barrier_ = Meeting();
    for (unsigned i = 0; i < num_threads; ++i) {
      Fiber& fiber = *fibers_[i];
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = Fiber::kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, Start, 0);
    }
    while (live_ > 0) {
      const uint64_t before = events_;
      for (current_ = 0; current_ < num_threads; ++current_) {
        if (fibers_[current_]->done) continue;
        threadIdx.x = current_;
        Switch(&scheduler_, &fibers_[current_]->context, &scheduler_fake_stack_, fibers_[current_]->stack.get(),
               Fiber::kStackBytes);
      }
      if (events_ == before) Fail("the threads wait for others that never come");
    }
  }

  // Waits for the threads of the mask in this warp. Returns their values, which hold until Leave.
  const Meeting& Meet(unsigned mask, uint64_t value) {
    const unsigned lane = current_ % 32;
    if ((mask >> lane & 1) == 0) Fail("a thread is not in its own mask");
    Meeting& meeting = MeetingOf(mask);
    meeting.values[lane] = value;
    meeting.arrived |= 1u << lane;
    ++events_;
    while (meeting.arrived != mask) Yield();
    return meeting;
  }

  void Leave(unsigned mask) {
    Meeting& meeting = MeetingOf(mask);
    const unsigned number = meeting.number;
    meeting.left |= 1u << current_ % 32;
    ++events_;
    if (meeting.left == mask) {
      meeting.arrived = meeting.left = 0;
      ++meeting.number;
    }
    while (meeting.number == number) Yield();
  }

  // Waits for all threads that have not returned. Returns whether any brought true.
  bool Barrier(bool value) {
    if (barrier_.arrived == 0) barrier_any_ = false;
    barrier_any_ = barrier_any_ || value;
    const unsigned number = barrier_.number;
    ++barrier_.arrived;
    ++events_;
    while (barrier_.number == number) {
      if (barrier_.arrived == live_) {
        barrier_.arrived = 0;
        ++barrier_.number;
        barrier_result_ = barrier_any_;
        ++events_;
      } else {
        Yield();
      }
    }
    return barrier_result_;
  }

 private:
  static void Start() {
    Block& block = Get();
    block.Arrived(nullptr);
    (*block.body_)();
    block.fibers_[block.current_]->done = true;
    --block.live_;
    ++block.events_;
    block.Switch(&block.fibers_[block.current_]->context, &block.scheduler_, nullptr, block.scheduler_stack_,
                 block.scheduler_stack_bytes_);
  }

  Meeting& MeetingOf(unsigned mask) { return meetings_[{current_ / 32, mask}]; }

  void Yield() {
    Fiber& fiber = *fibers_[current_];
    Switch(&fiber.context, &scheduler_, &fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
  }

  // The sanitizer is told of each change of stacks.
  void Switch(ucontext_t* from, ucontext_t* to, void** fake_stack, const void* stack, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
    swapcontext(from, to);
    Arrived(fake_stack == nullptr ? nullptr : *fake_stack);
    static_cast<void>(stack), static_cast<void>(bytes);
  }

  void Arrived(void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    const void* stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    const bool from_scheduler = bytes != Fiber::kStackBytes;
    if (from_scheduler) scheduler_stack_ = stack, scheduler_stack_bytes_ = bytes;
#endif
    static_cast<void>(fake_stack);
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::map<std::pair<unsigned, unsigned>, Meeting> meetings_;  // by warp and mask
  Meeting barrier_;
  bool barrier_any_ = false, barrier_result_ = false;
  const std::function<void()>* body_ = nullptr;
  unsigned num_threads_ = 0, live_ = 0, current_ = 0;
  uint64_t events_ = 0;
  ucontext_t scheduler_;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

// The value of the thread `source` of the warp, which must be in the mask.
template <typename T>
T Exchange(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves 8 bytes at most");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const Meeting& meeting = Block::Get().Meet(mask, bits);
  if ((mask >> source & 1) == 0) Fail("a shuffle from a thread outside of the mask");
  std::memcpy(&value, &meeting.values[source], sizeof(T));
  Block::Get().Leave(mask);
  return value;
}

}  // namespace cuda_emulation

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = threadIdx.x % 32;
  return cuda_emulation::Exchange(mask, value, (lane & ~(width - 1u)) + (static_cast<unsigned>(source) & (width - 1u)));
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int step, int width = 32) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned source = lane ^ static_cast<unsigned>(step);
  return cuda_emulation::Exchange(mask, value, source / width == lane / width ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int value) {
  const cuda_emulation::Meeting& meeting = cuda_emulation::Block::Get().Meet(mask, value != 0);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && meeting.values[lane] != 0) ballot |= 1u << lane;
  }
  cuda_emulation::Block::Get().Leave(mask);
  return ballot;
}

inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline void __syncwarp(unsigned mask) { __ballot_sync(mask, 0); }
inline void __syncthreads() { cuda_emulation::Block::Get().Barrier(false); }
inline int __syncthreads_or(int value) { return cuda_emulation::Block::Get().Barrier(value != 0); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

template <typename T>
T atomicMin(T* target, T value) {
  const T before = *target;
  *target = std::min(before, value);
  return before;
}

template <typename T>
T atomicAdd(T* target, T value) {
  const T before = *target;
  *target = before + value;
  return before;
}

// ---------------------------------------------------------------------------------------------------------------------
// The runtime: device memory is host memory, and calls are done when they return
// ---------------------------------------------------------------------------------------------------------------------

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNotReady = 600, cudaErrorUnknown = 999 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
using cudaStream_t = void*;
using cudaEvent_t = void*;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr cudaStream_t cudaStreamPerThread = nullptr;

namespace cuda_emulation {

inline thread_local cudaError_t last_error = cudaSuccess;
inline std::mutex launching;  // a launch at a time

inline cudaError_t Result(cudaError_t failure = cudaErrorUnknown) {
  return FailsNow() ? last_error = failure : cudaSuccess;
}

}  // namespace cuda_emulation

inline cudaError_t cudaPeekAtLastError() { return cuda_emulation::last_error; }
inline cudaError_t cudaGetLastError() { return std::exchange(cuda_emulation::last_error, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorUnknown ? "emulated failure" : ""; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cuda_emulation::Result(); }
inline cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t) {
  std::memset(target, value, bytes);
  return cuda_emulation::Result();
}
inline cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  const cudaError_t result = cuda_emulation::Result();
  if (result == cudaSuccess) std::memcpy(target, source, bytes);
  return result;
}
inline cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  return cudaMemsetAsync(target, value, bytes, nullptr);
}
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const cudaError_t result = cuda_emulation::Result(cudaErrorMemoryAllocation);
  if (result != cudaSuccess) return result;
  if (posix_memalign(memory, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xAB, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cuda_emulation::Result(); }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cuda_emulation::Result(); }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cuda_emulation::Result(); }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cuda_emulation::Result(); }
// Every second event is still to come, which stays behind as the last error.
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  static thread_local int num_queries = 0;
  if (++num_queries % 2 == 0) return cudaSuccess;
  return cuda_emulation::last_error = cudaErrorNotReady;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cuda_emulation::Result();
}
inline cudaError_t cudaSetDevice(int) { return cuda_emulation::Result(); }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cuda_emulation::Result();
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;  // a small GPU, so that kernels which share work among its processors take several turns
  return cuda_emulation::Result();
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const cudaError_t result = cuda_emulation::Result();
  if (result != cudaSuccess) return result;
  const std::lock_guard<std::mutex> lock(cuda_emulation::launching);
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  const std::function<void()> body = [&] { kernel(arguments...); };
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) cuda_emulation::Block::Get().Run(blockDim.x, body);
  return cudaSuccess;
}

#endif  // RANKHOUSE_TESTS_CUDA_EMULATION_CUDA_RUNTIME_H_
