// Calls of CUDA that fail because a test wants one to.
#ifndef RANKHOUSE_TESTS_CUDA_EMULATION_FAILING_CALLS_H_
#define RANKHOUSE_TESTS_CUDA_EMULATION_FAILING_CALLS_H_

#include <atomic>
#include <cstdint>

// How many calls succeed before one fails; negative: none does. One for all libraries of a process.
extern "C" {
__attribute__((visibility("default"))) inline std::atomic<int64_t> emulated_cuda_calls_left{-1};
}

namespace cuda_emulation {

// Whether this call is the one.
inline bool FailsNow() { return emulated_cuda_calls_left >= 0 && emulated_cuda_calls_left.fetch_sub(1) == 0; }

}  // namespace cuda_emulation

#endif  // RANKHOUSE_TESTS_CUDA_EMULATION_FAILING_CALLS_H_
