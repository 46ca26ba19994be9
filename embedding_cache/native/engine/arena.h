// Working memory of lookups: each thread keeps some from one lookup to the next.
#ifndef RANKHOUSE_ENGINE_ARENA_H_
#define RANKHOUSE_ENGINE_ARENA_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "cpu/scratch.h"
#include "rankhouse/kernels.h"

namespace rankhouse::engine {

// Memory that one lookup takes piece by piece and gives back at its end, all at once. It grows to what the largest
// lookup needed. Used by one thread at a time.
class Arena {
 public:
  // Room for count >= 0 elements, on a boundary of 64 bytes, not initialized. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    return taken_->Take<T>(count);
  }

  // The memory of the kernels that the lookup calls.
  rh_scratch* kernels() { return &kernels_; }

 private:
  friend class ThreadArena;

  void Begin();
  void End() { taken_.reset(); }

  rh_scratch own_;
  rh_scratch kernels_;
  std::optional<Scratch> taken_;
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
