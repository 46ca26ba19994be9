// One node of Redis: its idle connections, and its circuit breaker.
#ifndef RANKHOUSE_REDIS_NODE_H_
#define RANKHOUSE_REDIS_NODE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "redis/connection.h"
#include "redis/options.h"
#include "redis/tls.h"

namespace rankhouse::redis {

using Clock = std::chrono::steady_clock;

// Any thread may use it.
//
// The breaker opens after `breaker_failures` failures in a row. While it is open the node is left alone; after
// `breaker_for` one call may try it (half-open), whose outcome closes the breaker or opens it anew.
class Node {
 public:
  // `options` and `tls` must outlive the node.
  Node(const Address& address, const Options& options, const TlsContext* tls)
      : address_(address), options_(options), tls_(tls) {}

  const Address& address() const { return address_; }

  // Returns an idle connection, or a new one that is still connecting. Throws NodeError.
  std::unique_ptr<Connection> Take(bool is_replica);

  // Takes a connection back; keeps it if it is sound and there is room.
  void Give(std::unique_ptr<Connection> connection);

  // Whether the breaker lets a call pass; in its half-open state it lets one.
  bool Admits();

  void Succeeded();
  void Failed(const std::string& reason);

  // Why it is left alone, for messages: "failed 5 times in a row, the last time: ...; is tried again in 430 ms".
  std::string WhyRefused() const;

  int64_t num_times_opened() const;

 private:
  const Address address_;
  const Options& options_;
  const TlsContext* const tls_;

  mutable std::mutex mutex_;  // guards all below
  std::vector<std::unique_ptr<Connection>> idle_;
  int num_failures_ = 0;  // in a row
  Clock::time_point closed_until_{};
  std::string last_reason_;
  int64_t num_times_opened_ = 0;
};

// Calls in flight keep a node that its cluster has forgotten.
using NodePtr = std::shared_ptr<Node>;

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_NODE_H_
