// JSON, read strictly: no key twice, no key that is not known, every value of its type.
#ifndef RANKHOUSE_ENGINE_JSON_H_
#define RANKHOUSE_ENGINE_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace rankhouse::engine {

using Json = nlohmann::json;

// Parses a JSON object. Throws Error of `status`, whose message begins with `where`.
Json ParseJson(const std::string& content, const std::string& where, int status);

// A JSON object whose keys are known. What is wrong with it is thrown as an Error of its status, naming the place.
class JsonObject {
 public:
  // `value` must outlive this object. `where` names it in messages.
  JsonObject(const Json& value, std::string where, int status, const std::vector<std::string>& known);

  bool Has(const char* key) const { return value_.contains(key); }
  const Json& At(const char* key) const;  // any value, but it must be there
  std::string Text(const char* key) const;
  int64_t Integer(const char* key, int64_t least) const;
  const Json& Array(const char* key) const;

  const std::string& where() const { return where_; }
  int status() const { return status_; }
  [[noreturn]] void Refuse(const std::string& what) const;

 private:
  const Json& value_;
  const std::string where_;
  const int status_;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_JSON_H_
