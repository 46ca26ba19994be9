// Working memory of a call: taken from the executor's rh_scratch, or, without one, allocated and freed with the call.
#ifndef RANKHOUSE_CPU_SCRATCH_H_
#define RANKHOUSE_CPU_SCRATCH_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#include "rankhouse/kernels.h"

// Blocks of memory, filled one after the other. A call that needed several finds one as large as all of them at the
// next call, so calls of a steady size allocate nothing.
struct rh_scratch {
  struct Block {
    char* data;
    int64_t bytes;
  };
  std::vector<Block> blocks;
  std::atomic<bool> in_use{false};

  rh_scratch() = default;
  rh_scratch(const rh_scratch&) = delete;
  rh_scratch& operator=(const rh_scratch&) = delete;
  ~rh_scratch() { Free(); }

  RH_API void AddBlock(int64_t bytes);  // throws std::bad_alloc
  RH_API void Free() noexcept;
};

namespace rankhouse {

// What one call takes lives as long as this object; the libraries that are built over this one use it too. On the
// calling thread only: take the arrays first, then share them with the threads. A call has one of these and hands it
// on: a second one on the same executor is refused as two calls at once.
//
//   Scratch scratch(executor);
//   uint64_t* keys = scratch.Take<uint64_t>(num_ids);   // not initialized
class RH_API Scratch {
 public:
  // Throws Error where another call is using the executor's scratch.
  explicit Scratch(const rh_executor* executor);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Room for count >= 0 elements, on a boundary of 64 bytes, not initialized. Never NULL. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "nobody destroys them");
    if (count > std::numeric_limits<int64_t>::max() / 2 / static_cast<int64_t>(sizeof(T))) throw std::bad_alloc();
    return static_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  void* TakeBytes(int64_t bytes);

  rh_scratch own_;
  rh_scratch* scratch_;  // the executor's, or own_
  int64_t used_ = 0;     // of the last block
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_SCRATCH_H_
