#include "engine/background.h"

#include <sys/resource.h>

#include <exception>
#include <system_error>
#include <thread>

namespace rankhouse::engine {
namespace {

// A tenth of what a thread of normal priority gets where they compete (Linux: a weight of 110 beside 1024).
constexpr int kNice = 10;

}  // namespace

void RunInBackground(const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread thread;
  try {
    thread = std::thread([&] {
#ifdef __linux__
      setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone
#endif
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
    });
  } catch (const std::system_error&) {  // The machine has no more threads to give.
    return work();
  }
  thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace rankhouse::engine
