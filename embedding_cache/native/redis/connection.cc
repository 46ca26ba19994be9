#include "redis/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

// Some hundred rows at a time; see ReplyReader::Feed.
constexpr size_t kReceiveBytes = 16 << 10;

[[noreturn]] void Fail(const char* what, int fault) { throw NodeError(StrCat(what, " (", std::strerror(fault), ")")); }

bool StartsWith(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

Connection::Connection(const Address& address, bool is_replica, const Options& options, const TlsContext* tls)
    : is_replica_(is_replica), process_(getpid()), resolution_(Resolution::Of(address)) {
  try {
    FinishConnecting();
    if (tls != nullptr) tls_.emplace(*tls, address.host);
    Greet(options);
  } catch (...) {
    if (fd_ >= 0) close(fd_);
    throw;
  }
}

Connection::~Connection() {
  if (fd_ >= 0) close(fd_);
}

// Begins to connect to the next of the host's addresses that lets us. fault: why the one before did not.
void Connection::TryAddresses(int fault) {
  while (next_ != nullptr) {
    const addrinfo* address = std::exchange(next_, next_->ai_next);
    fd_ = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) Fail("no socket can be opened", errno);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd_, address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS) return;
    fault = errno;
    close(fd_);
    fd_ = -1;
  }
  Fail("cannot be connected to", fault);
}

void Connection::Greet(const Options& options) {
  std::string commands;
  if (!options.user.empty()) {
    AppendCommand(&commands, {"AUTH", options.user, options.password});
  } else if (!options.password.empty()) {
    AppendCommand(&commands, {"AUTH", options.password});
  }
  num_greetings_ = commands.empty() ? 0 : 1;
  if (is_replica_) {
    AppendCommand(&commands, {"READONLY"});
    ++num_greetings_;
  }
  if (!commands.empty()) Send(commands, 0);
}

void Connection::CheckGreeting(const Reply& reply) {
  if (!reply.IsError()) return;
  const bool is_refused = StartsWith(reply.text, "WRONGPASS") || StartsWith(reply.text, "NOPERM") ||
                          StartsWith(reply.text, "ERR AUTH") || StartsWith(reply.text, "ERR invalid password");
  // A plain server has no READONLY, and needs none.
  if (is_replica_ && StartsWith(reply.text, "ERR This instance has cluster support disabled")) return;
  throw NodeError(StrCat("refuses us: ", reply.text, is_refused ? " (see user, password_env and password_file)" : ""),
                  is_refused);
}

void Connection::Send(std::string_view commands, int64_t num_replies) {
  num_unread_ += num_replies;
  if (tls_) {
    tls_->Write(commands);
    tls_->TakeOutgoing(&outgoing_);
  } else {
    outgoing_ += commands;
  }
}

bool Connection::FinishConnecting() {
  if (!is_connecting_) return true;
  if (is_resolving()) {
    if (!resolution_->is_done()) return false;
    next_ = resolution_->addresses();
    TryAddresses(0);
  }
  pollfd state{fd_, POLLOUT, 0};
  if (poll(&state, 1, 0) == 0) return false;
  int fault = 0;
  socklen_t size = sizeof(fault);
  if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &fault, &size) != 0) fault = errno;
  if (fault != 0) {
    close(fd_);
    fd_ = -1;
    TryAddresses(fault);
    return false;
  }
  is_connecting_ = false;
  resolution_.reset();
  return true;
}

void Connection::Transmit() {
  if (!FinishConnecting()) return;
  while (num_sent_ < outgoing_.size()) {
    const ssize_t count = send(fd_, outgoing_.data() + num_sent_, outgoing_.size() - num_sent_, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      Fail("the connection broke", errno);
    }
    num_sent_ += static_cast<size_t>(count);
  }
  outgoing_.clear();
  num_sent_ = 0;
}

bool Connection::Receive() {
  if (!FinishConnecting()) return false;
  char bytes[kReceiveBytes];
  if (tls_) {
    // What one packet brought may be more than was taken last time.
    if (const size_t count = tls_->Read(bytes, sizeof(bytes)); count > 0) {
      reader_.Feed(bytes, count);
      return true;
    }
  }
  ssize_t count;
  do {
    count = recv(fd_, bytes, sizeof(bytes), 0);
  } while (count < 0 && errno == EINTR);
  if (count == 0) throw NodeError("closed the connection");
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    Fail("the connection broke", errno);
  }
  if (!tls_) {
    reader_.Feed(bytes, static_cast<size_t>(count));
    return true;
  }
  tls_->Received(bytes, static_cast<size_t>(count));
  tls_->TakeOutgoing(&outgoing_);
  if (const size_t plain = tls_->Read(bytes, sizeof(bytes)); plain > 0) reader_.Feed(bytes, plain);
  return true;
}

const Reply* Connection::Next() {
  try {
    while (const Reply* reply = reader_.Next()) {
      if (num_greetings_ > 0) {
        --num_greetings_;
        CheckGreeting(*reply);
        continue;
      }
      if (num_unread_ == 0) throw NodeError(StrCat("said something without being asked: ", reply->text.substr(0, 100)));
      --num_unread_;
      if (num_passed_over_ == 0) return reply;
      --num_passed_over_;
    }
    return nullptr;
  } catch (const NodeError&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw NodeError(error.what());
  }
}

short Connection::events() const {
  if (is_resolving()) return POLLIN;
  if (is_connecting_) return POLLOUT;
  return static_cast<short>(POLLIN | (num_unsent() > 0 ? POLLOUT : 0));
}

bool Connection::IsReusable() {
  if (process_ != getpid()) return false;
  if (is_connecting_ || num_greetings_ > 0 || num_unsent() > 0 || (tls_ && !tls_->is_ready())) return false;
  // A reply too many would be the answer to another command.
  if (num_unread_ == 0 && !reader_.is_empty()) return false;
  char byte;
  const ssize_t count = recv(fd_, &byte, 1, MSG_PEEK);
  // Bytes that nobody waits for are the end of a TLS session, or a mistake.
  return count < 0 ? errno == EAGAIN || errno == EWOULDBLOCK : count > 0 && num_unread_ > 0;
}

}  // namespace rankhouse::redis
