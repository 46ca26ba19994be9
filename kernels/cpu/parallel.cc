#include "cpu/parallel.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace rankhouse {
namespace {

// Starting and joining a thread takes some tens of microseconds: each must have clearly more to do than that.
constexpr int64_t kMinCyclesPerOwnThread = 200'000;
// A caller's pool has its threads already.
constexpr int64_t kMinCyclesPerPoolThread = 30'000;
// Pieces per thread: enough that a thread that the system took away for a while does not hold up the others.
constexpr int64_t kPiecesPerThread = 4;

// Threads that live as long as the call cost more than a pool, but leave nothing behind: no state to configure, and
// nothing that a fork() (Horovod's launcher, Triton's Python backend) would break.
void RunOnOwnThreads(int64_t num_threads, SharedWork* work) {
  std::vector<std::thread> threads;
  try {
    threads.reserve(num_threads - 1);
    for (int64_t n = 1; n < num_threads; ++n) threads.emplace_back([work] { work->Run(); });
  } catch (const std::exception&) {
    // The machine has no more threads, or memory for them, to give: those that run do the rest. An exception must not
    // leave here, where threads run that nobody joined.
  }
  work->Run();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

SharedWork::SharedWork(int64_t total, int64_t num_threads, rh_range_body body, void* argument)
    : total_(total),
      piece_(std::max<int64_t>(1, (total - 1) / (num_threads * kPiecesPerThread) + 1)),
      body_(body),
      argument_(argument) {}

void SharedWork::Run() noexcept {
  for (;;) {
    const int64_t begin = next_.fetch_add(piece_, std::memory_order_relaxed);
    if (begin >= total_) return;
    body_(argument_, begin, std::min(total_, begin + piece_));
  }
}

int64_t WorthwhileThreads(int64_t most, int64_t total, int64_t cost, int64_t min_cycles) {
  const double cycles = static_cast<double>(total) * static_cast<double>(cost);
  const double worthwhile = std::min(cycles / static_cast<double>(min_cycles), 1e6);
  return std::max<int64_t>(1, std::min({most, total, static_cast<int64_t>(worthwhile)}));
}

int64_t NumProcessors() {
  static const int64_t num_processors = std::max(1u, std::thread::hardware_concurrency());
  return num_processors;
}

int64_t NumThreads(const rh_executor* executor) {
  return executor != nullptr && executor->num_threads > 0 ? executor->num_threads : NumProcessors();
}

void ParallelForRange(const rh_executor* executor, int64_t total, int64_t cost, rh_range_body body, void* argument) {
  if (total <= 0) return;
  const bool has_pool = executor != nullptr && executor->parallel_for != nullptr;
  int64_t most = executor != nullptr ? executor->num_threads : 0;
  if (has_pool && most <= 0) return executor->parallel_for(executor->context, total, cost, body, argument);
  if (most <= 0) most = NumProcessors();
  const int64_t num_threads =
      WorthwhileThreads(most, total, cost, has_pool ? kMinCyclesPerPoolThread : kMinCyclesPerOwnThread);
  if (num_threads == 1) return body(argument, 0, total);
  SharedWork work(total, num_threads, body, argument);
  if (!has_pool) return RunOnOwnThreads(num_threads, &work);
  // As many units as threads may run: each takes pieces until none is left.
  const auto run = [](void* shared, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) static_cast<SharedWork*>(shared)->Run();
  };
  executor->parallel_for(executor->context, num_threads, std::max<int64_t>(cost, kMinCyclesPerPoolThread), run, &work);
}

}  // namespace rankhouse
