// An object of a JSON document, whose keys are known.
#ifndef RANKHOUSE_ENGINE_JSON_H_
#define RANKHOUSE_ENGINE_JSON_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "format/json.h"

namespace rankhouse::engine {

using format::Json;

// What is wrong is thrown as Error RH_CORRUPT, with the place in front.
class JsonObject {
 public:
  // `value` must outlive this object.
  JsonObject(const Json& value, std::string where, std::initializer_list<std::string_view> known)
      : value_(value), where_(std::move(where)) {
    format::RequireIntact(value.is_object(), where_, "expected a JSON object, found ", value.type_name());
    format::CheckKeys(where_, value, known);
  }

  // The object under a key of this one, or among its values; `what` names it.
  JsonObject Part(const Json& value, const std::string& what, std::initializer_list<std::string_view> known) const {
    return JsonObject(value, StrCat(where_, ": ", what), known);
  }

  const std::string& where() const { return where_; }
  bool Has(const char* key) const { return value_.contains(key); }
  const Json& At(const char* key) const { return format::Member(where_, value_, key); }
  const Json& Array(const char* key) const { return format::ArrayMember(where_, value_, key); }
  const Json& Object(const char* key) const { return format::ObjectMember(where_, value_, key); }
  std::string Text(const char* key) const { return format::StringMember(where_, value_, key); }
  int64_t Integer(const char* key, int64_t least) const {
    const int64_t value = format::IntegerMember(where_, value_, key);
    Check(value >= least, "'", key, "' is ", value, ": expected ", least, " or more");
    return value;
  }

  template <typename... Parts>
  void Check(bool condition, const Parts&... parts) const {
    format::RequireIntact(condition, where_, parts...);
  }

 private:
  const Json& value_;
  const std::string where_;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_JSON_H_
