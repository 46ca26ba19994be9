#include "cpu/parallel.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace rankhouse {
namespace {

// Starting and joining a thread takes some tens of microseconds: each must have clearly more to do than that.
constexpr int64_t kMinCyclesPerThread = 200'000;

// Threads that live as long as the call cost a little more than a pool, but leave nothing behind: no state to
// configure, and nothing that a fork() (Horovod's launcher, Triton's Python backend) would break.
void RunOnOwnThreads(int64_t num_threads, int64_t total, rh_range_body body, void* argument) {
  const auto boundary = [=](int64_t part) { return total / num_threads * part + std::min(part, total % num_threads); };
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  int64_t part = 1;
  try {
    for (; part < num_threads; ++part) threads.emplace_back(body, argument, boundary(part), boundary(part + 1));
  } catch (const std::exception&) {
    // The machine has no more threads, or memory for them, to give: this one does the rest. An exception must not leave
    // here, where threads run that nobody joined.
    body(argument, boundary(part), total);
  }
  body(argument, 0, boundary(1));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void ParallelForRange(const rh_executor* executor, int64_t total, int64_t cost, rh_range_body body, void* argument) {
  if (total <= 0) return;
  if (executor != nullptr && executor->parallel_for != nullptr) {
    executor->parallel_for(executor->context, total, cost, body, argument);
    return;
  }
  int64_t num_threads = executor != nullptr ? executor->num_threads : 0;
  if (num_threads <= 0) num_threads = std::max(1u, std::thread::hardware_concurrency());
  const int64_t worthwhile = static_cast<int64_t>(static_cast<double>(total) * cost / kMinCyclesPerThread);
  num_threads = std::min({num_threads, total, std::max<int64_t>(1, worthwhile)});
  if (num_threads == 1) {
    body(argument, 0, total);
  } else {
    RunOnOwnThreads(num_threads, total, body, argument);
  }
}

}  // namespace rankhouse
