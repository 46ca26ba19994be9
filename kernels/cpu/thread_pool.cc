// A thread pool for callers that have none.
//
// The caller of rh_thread_pool_for works too, and the pool's own threads join it as they wake up: it never waits for
// one that has not begun. Lock order: turn_, then mutex_.
#include <algorithm>
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

// The pool whose work this thread is doing. A call from within that work runs on this thread alone, where waiting for
// the pool's turn would be for ever.
thread_local const rh_thread_pool* working_for = nullptr;

}  // namespace

struct rh_thread_pool {
 public:
  explicit rh_thread_pool(int64_t num_threads) : num_threads_(num_threads) {
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
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      work_ = work;
      places_ = helpers;
    }
    for (int64_t n = 0; n < helpers; ++n) wake_.notify_one();
    const rh_thread_pool* const outer = std::exchange(working_for, this);
    work->Run();
    working_for = outer;
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = nullptr;
    places_ = 0;
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void Serve() {
    working_for = this;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || places_ > 0; });
      if (stopping_) return;
      --places_;
      ++busy_;
      rankhouse::SharedWork* work = work_;
      lock.unlock();
      work->Run();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
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
  std::vector<std::thread> threads_;
  std::mutex turn_;   // held by the call whose work it is
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable done_;
  rankhouse::SharedWork* work_ = nullptr;
  int64_t places_ = 0;  // threads that may still join the work
  int64_t busy_ = 0;    // threads that have joined it
  bool stopping_ = false;
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
