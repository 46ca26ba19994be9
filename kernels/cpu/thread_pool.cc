// A thread pool for callers that have none.
//
// The caller of rh_thread_pool_for works too, and the pool's own threads join it as they wake up: it never waits for
// one that has not begun. Waking a thread that sleeps takes as long as a small call: so threads that are done look out
// for the next call a little while before they sleep, and a caller for those that are not done. Lock order: turn_, then
// mutex_.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cpu/parallel.h"

namespace {

// Waking a thread costs some microseconds: each must have clearly more to do than that.
constexpr int64_t kMinCyclesPerThread = 30'000;
// Longer than what lies between the calls of one step, and too short to be felt where nothing follows.
constexpr std::chrono::microseconds kLookOut{50};

// Lets a little time pass, for what shares the processor's core.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Looks out for `what` for a while; whether it came.
template <typename What>
bool LookOutFor(What what) {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  do {
    for (int n = 0; n < 32; ++n) {
      if (what()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// The pool whose work this thread is doing. A call from within that work runs on this thread alone, where waiting for
// the pool's turn would be for ever.
thread_local const rh_thread_pool* working_for = nullptr;

}  // namespace

struct rh_thread_pool {
 public:
  explicit rh_thread_pool(int64_t num_threads)
      : num_threads_(num_threads), looks_out_(num_threads <= rankhouse::NumProcessors()) {
    threads_.reserve(num_threads - 1);
    try {
      for (int64_t n = 1; n < num_threads; ++n) threads_.emplace_back([this] { Serve(); });
    } catch (...) {
      Stop();
      throw;
    }
  }
  ~rh_thread_pool() { Stop(); }

  int64_t num_threads() const { return num_threads_; }

  // Runs the work on this thread and up to `helpers` of the pool's.
  void Run(rankhouse::SharedWork* work, int64_t helpers) {
    const std::lock_guard<std::mutex> turn(turn_);
    int64_t sleepers;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work_ = work;
      places_ = helpers;
      sleepers = std::min(helpers, asleep_);
    }
    for (int64_t n = 0; n < sleepers; ++n) wake_.notify_one();
    const rh_thread_pool* const outer = std::exchange(working_for, this);
    work->Run();
    working_for = outer;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work_ = nullptr;
      places_ = 0;
    }
    if (looks_out_ && LookOutFor([this] { return busy_ == 0; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void Serve() {
    working_for = this;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++asleep_;
      wake_.wait(lock, [this] { return stopping_ || places_ > 0; });
      --asleep_;
      while (!stopping_ && places_ > 0) {
        --places_;
        ++busy_;
        rankhouse::SharedWork* const work = work_;
        lock.unlock();
        work->Run();
        lock.lock();
        if (--busy_ == 0) done_.notify_one();
        if (!looks_out_) continue;
        lock.unlock();
        LookOutFor([this] { return stopping_ || places_ > 0; });
        lock.lock();
      }
      if (stopping_) return;
    }
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const int64_t num_threads_;
  const bool looks_out_;  // there is a processor for each thread
  std::vector<std::thread> threads_;
  std::mutex turn_;   // held by the call whose work it is
  std::mutex mutex_;  // guards what follows; the atomic ones are also read without it
  std::condition_variable wake_;
  std::condition_variable done_;
  rankhouse::SharedWork* work_ = nullptr;
  int64_t asleep_ = 0;              // threads that wait to be woken
  std::atomic<int64_t> places_{0};  // threads that may still join the work
  std::atomic<int64_t> busy_{0};    // threads that have joined it
  std::atomic<bool> stopping_{false};
};

int rh_thread_pool_create(int32_t num_threads, rh_thread_pool** pool) {
  return rankhouse::Guard([&] {
    rankhouse::Require(pool != nullptr, "pool is NULL");
    *pool = nullptr;
    rankhouse::Require(num_threads >= 0, "num_threads is ", num_threads,
                       ": expected at least 1, or 0 for as many as there are processors");
    *pool = new rh_thread_pool(num_threads == 0 ? rankhouse::NumProcessors() : num_threads);
  });
}

void rh_thread_pool_destroy(rh_thread_pool* pool) { delete pool; }

void rh_thread_pool_for(void* context, int64_t total, int64_t cost, rh_range_body body, void* argument) {
  if (total <= 0) return;
  rh_thread_pool* pool = static_cast<rh_thread_pool*>(context);
  const int64_t num_threads =
      working_for == pool ? 1 : rankhouse::WorthwhileThreads(pool->num_threads(), total, cost, kMinCyclesPerThread);
  if (num_threads == 1) return body(argument, 0, total);
  rankhouse::SharedWork work(total, num_threads, body, argument);
  pool->Run(&work, num_threads - 1);
}
