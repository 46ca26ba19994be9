// TLS over bytes that somebody else sends and receives: OpenSSL with memory in place of a socket. So nothing here
// waits, and a connection that the peer has closed raises no SIGPIPE.
#ifndef RANKHOUSE_REDIS_TLS_H_
#define RANKHOUSE_REDIS_TLS_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

#include "redis/options.h"

namespace rankhouse::redis {

// What all TLS connections of a client share. Any thread may use it.
class TlsContext {
 public:
  // Throws Error (RH_INVALID_ARGUMENT) if a file cannot be read, naming it.
  explicit TlsContext(const Options& options);

  SSL_CTX* get() const { return context_.get(); }
  const std::string& server_name() const { return server_name_; }

 private:
  struct Deleter {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Deleter> context_;
  std::string server_name_;
};

// The client's side of one connection. One thread at a time.
class TlsStream {
 public:
  // The peer must have a certificate for the context's server name, or for `host` where there is none.
  TlsStream(const TlsContext& context, const std::string& host);

  // Takes bytes that the peer sent. Throws NodeError, lasting if the peer's certificate is refused.
  void Received(const char* bytes, size_t size);

  // Decrypts up to `size` bytes of what was received and returns how many; 0: there is nothing. Throws NodeError.
  size_t Read(char* bytes, size_t size);

  // Encrypts bytes; those given before the handshake is done wait for it. Throws NodeError.
  void Write(std::string_view bytes);

  bool is_ready() const { return SSL_is_init_finished(ssl_.get()); }

  // Moves to `out` what is to be sent to the peer.
  void TakeOutgoing(std::string* out);

 private:
  struct Deleter {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  void Advance();
  [[noreturn]] void Fail(const char* what);

  std::unique_ptr<SSL, Deleter> ssl_;
  std::string waiting_;  // what is to be encrypted when the handshake is done
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_TLS_H_
