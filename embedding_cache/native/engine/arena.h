// Working memory of lookups: each thread keeps some from one lookup to the next.
#ifndef RANKHOUSE_ENGINE_ARENA_H_
#define RANKHOUSE_ENGINE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "rankhouse/kernels.h"

namespace rankhouse::engine {

// Memory that one lookup takes piece by piece and gives back at its end, all at once. It grows to what the largest
// lookup needed. Used by one thread at a time.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Room for count >= 0 elements, on a boundary of 64 bytes, not initialized. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "nobody destroys them");
    return static_cast<T*>(TakeBytes(count, sizeof(T)));
  }

  // The kernels' memory.
  rh_scratch* scratch() const { return scratch_; }

  // Makes all that was taken free again.
  void Reset();

 private:
  struct Block {
    std::unique_ptr<std::byte[]> data;
    int64_t bytes;
  };

  void* TakeBytes(int64_t count, int64_t size);

  std::vector<Block> blocks_;
  int64_t used_ = 0;  // of the last block
  rh_scratch* scratch_ = nullptr;
};

// This thread's arena, for the time of one call. A call within a call, as a caller's thread pool may make them, gets
// another one.
class ThreadArena {
 public:
  ThreadArena();
  ~ThreadArena();
  ThreadArena(const ThreadArena&) = delete;
  ThreadArena& operator=(const ThreadArena&) = delete;

  Arena* operator->() const { return arena_.get(); }
  Arena* get() const { return arena_.get(); }

 private:
  std::unique_ptr<Arena> arena_;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ARENA_H_
