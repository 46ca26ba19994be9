// Spreads the work of one call over threads: the caller's pool, or threads of the call's own.
#ifndef RANKHOUSE_CPU_PARALLEL_H_
#define RANKHOUSE_CPU_PARALLEL_H_

#include <cstdint>

#include "rankhouse/kernels.h"

namespace rankhouse {

// Does what rh_parallel_for promises, on the executor (or its defaults, where it is NULL).
void ParallelForRange(const rh_executor* executor, int64_t total, int64_t cost, rh_range_body body, void* argument);

// Calls body(begin, end) for disjoint ranges that cover [0, total). `cost` is about how many cycles one unit takes. The
// body must not throw: it reports what is wrong through what it captures.
template <typename Body>
void ParallelFor(const rh_executor* executor, int64_t total, int64_t cost, Body body) {
  const auto call = [](void* argument, int64_t begin, int64_t end) noexcept {
    (*static_cast<Body*>(argument))(begin, end);
  };
  ParallelForRange(executor, total, cost, call, &body);
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_PARALLEL_H_
