// How Redis is reached.
#ifndef RANKHOUSE_REDIS_OPTIONS_H_
#define RANKHOUSE_REDIS_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rankhouse::redis {

struct Address {
  std::string host;
  int port = 6379;

  // host:port, with an IPv6 address in brackets.
  std::string Text() const;
  bool operator==(const Address& other) const { return host == other.host && port == other.port; }
};

struct Options {
  std::vector<Address> entries;  // any nodes of the cluster, or one plain server
  bool tls = false;
  std::string user;              // of Redis' access control list; empty: the default user
  std::string password;          // never part of a message
  std::string ca_file;           // PEM; empty: the system's certificates
  std::string certificate_file;  // PEM, the client's own, and its key; empty: none
  std::string key_file;
  std::string server_name;                  // what the nodes' certificates are made out to; empty: the address of each
  std::chrono::milliseconds deadline{100};  // of a call that brings none
  std::chrono::milliseconds hedge{10};      // a node that is silent for so long is hedged by a replica; 0: never
  std::chrono::milliseconds breaker_for{1000};  // how long a node that failed is left alone
  int breaker_failures = 5;                     // ... after so many failures in a row
  int connections = 8;                          // idle ones that are kept for each node
  int batch = 1024;                             // most commands under way on one connection

  // Reads the options' JSON object: `url` and any of user, password_env, password_file, ca_file, certificate_file,
  // key_file, server_name, deadline_ms, hedge_ms, breaker_ms, breaker_failures, connections, batch. The URL is
  // redis://[user@]host[:port][,host[:port]...], or rediss:// for TLS. Throws Error (RH_INVALID_ARGUMENT) on what it
  // does not know, naming the nearest key.
  static Options Parse(const std::string& json);
};

// Reads host:port, or what MOVED and ASK say, where an empty host means the one that said it.
Address ParseAddress(std::string_view text, const std::string& default_host);

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_OPTIONS_H_
