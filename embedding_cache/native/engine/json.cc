#include "engine/json.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/status.h"

namespace rankhouse::engine {
namespace {

// The edit distance of two keys.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string Hint(const std::string& key, const std::vector<std::string>& known) {
  const auto nearer = [&](const std::string& a, const std::string& b) { return Distance(key, a) < Distance(key, b); };
  const auto nearest = std::min_element(known.begin(), known.end(), nearer);
  if (nearest == known.end() || Distance(key, *nearest) > std::max<size_t>(2, key.size() / 2)) {
    return StrCat("known are ", Joined(known));
  }
  return StrCat("did you mean '", *nearest, "'?");
}

}  // namespace

Json ParseJson(const std::string& content, const std::string& where, int status) {
  std::vector<std::set<std::string>> keys;  // of the objects around the place that is being read
  const auto check = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(status, StrCat(where, ": is not valid JSON (the key '", parsed.get<std::string>(),
                                 "' stands twice); restore it from another copy"));
    }
    return true;
  };
  Json value;
  try {
    value = Json::parse(content, check);
  } catch (const Json::exception& error) {
    throw Error(status, StrCat(where, ": is not valid JSON (", error.what(), "); restore it from another copy"));
  }
  if (!value.is_object()) {
    throw Error(status, StrCat(where, ": expected a JSON object, found ", value.type_name()));
  }
  return value;
}

JsonObject::JsonObject(const Json& value, std::string where, int status, const std::vector<std::string>& known)
    : value_(value), where_(std::move(where)), status_(status) {
  if (!value.is_object()) Refuse(StrCat("expected a JSON object, found ", value.type_name()));
  for (const auto& item : value.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    Refuse(StrCat("has the unknown key '", item.key(), "'; ", Hint(item.key(), known)));
  }
}

const Json& JsonObject::At(const char* key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) Refuse(StrCat("has no '", key, "'"));
  return *found;
}

std::string JsonObject::Text(const char* key) const {
  const Json& value = At(key);
  if (!value.is_string()) Refuse(StrCat("expected a text under '", key, "', found ", value.dump()));
  return value.get<std::string>();
}

int64_t JsonObject::Integer(const char* key, int64_t least) const {
  const Json& value = At(key);
  // What is beyond int64 is unsigned or a float here, and negative or no integer there.
  if (!value.is_number_integer() || value.get<int64_t>() < least) {
    Refuse(StrCat("expected an integer of ", least, " or more under '", key, "', found ", value.dump()));
  }
  return value.get<int64_t>();
}

const Json& JsonObject::Array(const char* key) const {
  const Json& value = At(key);
  if (!value.is_array()) Refuse(StrCat("expected a list under '", key, "', found ", value.type_name()));
  return value;
}

void JsonObject::Refuse(const std::string& what) const { throw Error(status_, StrCat(where_, ": ", what)); }

}  // namespace rankhouse::engine
