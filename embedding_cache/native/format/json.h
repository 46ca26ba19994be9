// JSON as this package's files have it: strict, so that what is misspelt or made by a newer release is refused and not
// passed over. `where` stands in front of each message: the file's path, and which part of it.
#ifndef RANKHOUSE_FORMAT_JSON_H_
#define RANKHOUSE_FORMAT_JSON_H_

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/status.h"
#include "rankhouse/engine.h"

namespace rankhouse::format {

using Json = nlohmann::json;

// Throws RH_CORRUPT, the message beginning with `where`, unless the condition holds.
template <typename... Parts>
void RequireIntact(bool condition, const std::string& where, const Parts&... parts) {
  if (!condition) throw Error(RH_CORRUPT, StrCat(where, ": ", parts...));
}

// Parses an object: UTF-8, no NaN, no key twice.
Json ParseObject(const std::string& where, std::string_view text);

// Checks the two keys with which each of our JSON files begins. `kind`: as "transform".
void CheckFormat(const std::string& where, const Json& document, const std::string& kind);

// Checks that an object has no key but those known; the message names the nearest.
void CheckKeys(const std::string& where, const Json& object, std::initializer_list<std::string_view> known);

// An object's value, of the type that is asked for. Where it is wrong or missing, the message names the key.
const Json& Member(const std::string& where, const Json& object, const std::string& key);
const Json& ArrayMember(const std::string& where, const Json& object, const std::string& key);
const Json& ObjectMember(const std::string& where, const Json& object, const std::string& key);
std::string StringMember(const std::string& where, const Json& object, const std::string& key);
int64_t IntegerMember(const std::string& where, const Json& object, const std::string& key);

}  // namespace rankhouse::format

#endif  // RANKHOUSE_FORMAT_JSON_H_
