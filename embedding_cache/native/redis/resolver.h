// Names of hosts to addresses, without waiting: getaddrinfo has no deadline, so it runs in a thread of its own.
#ifndef RANKHOUSE_REDIS_RESOLVER_H_
#define RANKHOUSE_REDIS_RESOLVER_H_

#include <netdb.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "redis/options.h"

namespace rankhouse::redis {

// The answer to the question where a host is. Any thread may use it.
class Resolution {
 public:
  // Asks. Numeric addresses, which is what clusters announce, are answered at once, and so are names that were asked
  // for a moment ago; whoever asks for a name while somebody else waits for it waits with them, so that there is one
  // thread for each name at most, however long the system's resolver takes. Throws NodeError if that cannot be asked.
  static std::shared_ptr<const Resolution> Of(const Address& address);

  Resolution() = default;
  ~Resolution();
  Resolution(const Resolution&) = delete;
  Resolution& operator=(const Resolution&) = delete;

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }

  // Becomes readable when it is done, and stays so; -1 if it was done at once.
  int fd() const { return fd_; }

  // What was found, when it is done: one address or more. Throws NodeError if there is none.
  const addrinfo* addresses() const;

 private:
  static std::shared_ptr<Resolution> Begin(const Address& address);
  bool IsOld() const;
  void Ask(const Address& address, int flags);

  int fd_ = -1;
  int fault_ = 0;
  addrinfo* found_ = nullptr;
  std::chrono::steady_clock::time_point done_at_{};
  std::atomic<bool> is_done_{false};  // All above is set before, and never changes afterwards.
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_RESOLVER_H_
