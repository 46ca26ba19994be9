// Spreads the work of one call over threads: the caller's pool, or threads of the call's own.
#ifndef RANKHOUSE_CPU_PARALLEL_H_
#define RANKHOUSE_CPU_PARALLEL_H_

#include <atomic>
#include <cstdint>

#include "rankhouse/kernels.h"

namespace rankhouse {

// Work that several threads share: each takes the next piece until none is left, so that none waits for a slower one.
class SharedWork {
 public:
  SharedWork(int64_t total, int64_t num_threads, rh_range_body body, void* argument);

  // Takes pieces and does them. Any number of threads may call it; when all have returned, the work is done.
  void Run() noexcept;

 private:
  const int64_t total_;
  const int64_t piece_;
  const rh_range_body body_;
  void* const argument_;
  std::atomic<int64_t> next_{0};
};

// How many of `most` threads are worth starting for the work, if each is to have at least `min_cycles` to do.
int64_t WorthwhileThreads(int64_t most, int64_t total, int64_t cost, int64_t min_cycles);

// As many as there are processors that this process may use.
int64_t NumProcessors();

// The most threads that the executor (or its defaults, where it is NULL) may use.
int64_t NumThreads(const rh_executor* executor);

// Does what rh_parallel_for promises, on the executor (or its defaults, where it is NULL). The libraries that are built
// over this one use it too.
RH_API void ParallelForRange(const rh_executor* executor, int64_t total, int64_t cost, rh_range_body body,
                             void* argument);

// Calls body(begin, end) for disjoint ranges that cover [0, total). `cost` is about how many cycles one unit takes. The
// body must not throw: it reports what is wrong through what it captures.
template <typename Body>
void ParallelFor(const rh_executor* executor, int64_t total, int64_t cost, Body body) {
  const auto call = [](void* argument, int64_t begin, int64_t end) noexcept {
    (*static_cast<Body*>(argument))(begin, end);
  };
  ParallelForRange(executor, total, cost, call, &body);
}

// Calls body(unit) for each unit of [0, total). Threads take `grain` units at a time, in rising order, so that units of
// very different size are shared out evenly.
template <typename Body>
void ForEach(const rh_executor* executor, int64_t total, int64_t grain, int64_t cost, Body body) {
  std::atomic<int64_t> next{0};
  ParallelFor(executor, total, cost, [&](int64_t, int64_t) {
    for (int64_t unit; (unit = next.fetch_add(grain, std::memory_order_relaxed)) < total;) {
      const int64_t end = unit + grain < total ? unit + grain : total;
      for (; unit < end; ++unit) body(unit);
    }
  });
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_PARALLEL_H_
