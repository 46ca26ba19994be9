// One connection to one node, which never waits: its owner polls.
#ifndef RANKHOUSE_REDIS_CONNECTION_H_
#define RANKHOUSE_REDIS_CONNECTION_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "redis/options.h"
#include "redis/resolver.h"
#include "redis/resp.h"
#include "redis/tls.h"

namespace rankhouse::redis {

// Connects, shakes hands and authenticates while commands may already be given to it. One thread at a time. Every
// method throws NodeError when the node fails; the connection is of no use then.
class Connection {
 public:
  // Begins to connect. `is_replica`: it is to read from a replica (READONLY). `tls`: NULL for plain sockets.
  Connection(const Address& address, bool is_replica, const Options& options, const TlsContext* tls);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Takes commands to be sent, as AppendCommand writes them.
  void Send(std::string_view commands, int64_t num_replies);

  // Sends what the socket takes.
  void Transmit();

  // Takes some KiB of what has come; false if there was nothing. Take all replies by Next before calling it again.
  bool Receive();

  // Returns the next reply, valid until the next call, or NULL if it is not here yet.
  const Reply* Next();

  // The replies still to come belong to nobody: Next passes them over.
  void Abandon() { num_passed_over_ = num_unread_; }

  // What to poll, and for what. Another one after each step of connecting.
  int fd() const { return is_resolving() ? resolution_->fd() : fd_; }
  short events() const;
  // Whether it waits to learn where the host is.
  bool is_resolving() const { return fd_ < 0; }
  bool is_replica() const { return is_replica_; }
  size_t num_unsent() const { return outgoing_.size() - num_sent_; }

  // Whether it is connected, has sent all that it was given and is still open: fit to be used again. In a process that
  // was forked off it never is: parent and child would read each other's replies, which are rows of the same size.
  bool IsReusable();

 private:
  bool FinishConnecting();
  void TryAddresses(int fault);
  void Greet(const Options& options);
  void CheckGreeting(const Reply& reply);

  const bool is_replica_;
  const pid_t process_;                           // that made it
  std::shared_ptr<const Resolution> resolution_;  // while it is connecting
  const addrinfo* next_ = nullptr;                // of its addresses, the next one to try
  int fd_ = -1;
  bool is_connecting_ = true;
  std::optional<TlsStream> tls_;
  std::string outgoing_;  // as it goes through the socket
  size_t num_sent_ = 0;   // of outgoing_
  ReplyReader reader_;
  int64_t num_greetings_ = 0;    // replies to come to what Greet sent
  int64_t num_unread_ = 0;       // replies to come, without greetings
  int64_t num_passed_over_ = 0;  // of these, the first that belong to nobody
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_CONNECTION_H_
