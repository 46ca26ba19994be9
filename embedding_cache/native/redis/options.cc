#include "redis/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "core/status.h"
#include "format/json.h"

namespace rankhouse::redis {
namespace {

constexpr char kWhere[] = "redis: the options";
constexpr int kLargest = 1'000'000'000;  // of numbers: some days in milliseconds

std::string PasswordOfVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  Require(value != nullptr && *value != '\0', "redis: the environment has no ", name,
          ", which password_env names: set it to the user's password");
  return value;
}

std::string PasswordOfFile(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  Require(!line.empty(), "redis: ", path,
          ", which password_file names, cannot be read or is empty: put the user's "
          "password into its first line");
  return line;
}

void ReadUrl(const std::string& url, Options* options) {
  std::string_view rest = url;
  for (const auto& [scheme, tls] : {std::pair<std::string_view, bool>{"rediss://", true}, {"redis://", false}}) {
    if (rest.substr(0, scheme.size()) != scheme) continue;
    rest.remove_prefix(scheme.size());
    options->tls = tls;
    const size_t at = rest.rfind('@');
    if (at != std::string_view::npos) {
      options->user = std::string(rest.substr(0, at));
      rest.remove_prefix(at + 1);
      // The URL itself must not be shown: it has a secret.
      Require(options->user.find(':') == std::string::npos,
              "redis: the URL has a password, which would be seen in lists of processes: leave it out, and name the "
              "variable or the file that holds it (password_env, password_file)");
    }
    while (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
    Require(rest.find('/') == std::string_view::npos, "redis: ", url, " has a path: a cluster has one database only");
    while (true) {
      const size_t comma = rest.find(',');
      options->entries.push_back(ParseAddress(rest.substr(0, comma), ""));
      Require(!options->entries.back().host.empty(), "redis: ", url,
              " names no host: expected host:port, several with commas");
      if (comma == std::string_view::npos) return;
      rest.remove_prefix(comma + 1);
    }
  }
  Require(false, "redis: the URL begins with neither redis:// nor rediss:// (TLS): ", url);
}

// The object of options, read key by key.
class Reader {
 public:
  explicit Reader(const format::Json& object) : object_(object) {}

  void Text(const char* key, std::string* value) const {
    if (object_.contains(key)) *value = format::StringMember(kWhere, object_, key);
  }

  void Number(const char* key, int* value) const {
    if (object_.contains(key)) *value = Integer(key, 1);
  }

  void Time(const char* key, int least, std::chrono::milliseconds* value) const {
    if (object_.contains(key)) *value = std::chrono::milliseconds(Integer(key, least));
  }

 private:
  int Integer(const char* key, int least) const {
    const int64_t value = format::IntegerMember(kWhere, object_, key);
    Require(value >= least && value <= kLargest, kWhere, ": ", key, " is ", value, ": expected ", least, " to ",
            kLargest);
    return static_cast<int>(value);
  }

  const format::Json& object_;
};

void Check(const Options& options) {
  Require(options.user.empty() || !options.password.empty(), "redis: user ", options.user,
          " has no password: name the variable or the file that holds it (password_env, password_file)");
  Require(options.certificate_file.empty() == options.key_file.empty(),
          "redis: certificate_file and key_file belong together: give both or none");
  Require(options.tls || (options.ca_file.empty() && options.certificate_file.empty() && options.server_name.empty()),
          "redis: ca_file, certificate_file and server_name are for TLS: the URL must begin with rediss://");
}

Options Read(const format::Json& object) {
  format::CheckKeys(
      kWhere, object,
      {"url", "user", "password_env", "password_file", "ca_file", "certificate_file", "key_file", "server_name",
       "deadline_ms", "hedge_ms", "breaker_ms", "breaker_failures", "connections", "batch"});
  Options options;
  ReadUrl(format::StringMember(kWhere, object, "url"), &options);
  std::string password_env, password_file;
  const Reader reader(object);
  reader.Text("user", &options.user);
  reader.Text("password_env", &password_env);
  reader.Text("password_file", &password_file);
  reader.Text("ca_file", &options.ca_file);
  reader.Text("certificate_file", &options.certificate_file);
  reader.Text("key_file", &options.key_file);
  reader.Text("server_name", &options.server_name);
  reader.Time("deadline_ms", 1, &options.deadline);
  reader.Time("hedge_ms", 0, &options.hedge);
  reader.Time("breaker_ms", 1, &options.breaker_for);
  reader.Number("breaker_failures", &options.breaker_failures);
  reader.Number("connections", &options.connections);
  reader.Number("batch", &options.batch);
  if (!password_env.empty()) options.password = PasswordOfVariable(password_env);
  if (!password_file.empty()) options.password = PasswordOfFile(password_file);
  Check(options);
  return options;
}

}  // namespace

std::string Address::Text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Address ParseAddress(std::string_view text, const std::string& default_host) {
  Address address;
  std::string_view host = text, port;
  // The last colon: MOVED gives IPv6 addresses without brackets, and always a port.
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && (text.empty() || text.back() != ']')) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  address.host = host.empty() || host == "?" ? default_host : std::string(host);
  if (colon != std::string_view::npos && !port.empty()) {
    const auto [end, fault] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    Require(fault == std::errc() && end == port.data() + port.size() && address.port > 0 && address.port < 65536,
            "redis: ", std::string(text), " is no host:port");
  }
  return address;
}

Options Options::Parse(const std::string& json) {
  try {
    return Read(format::ParseObject(kWhere, json));
  } catch (const Error& error) {
    // What is corrupt in a file is an argument here.
    throw Error(RH_INVALID_ARGUMENT, error.what());
  }
}

}  // namespace rankhouse::redis
