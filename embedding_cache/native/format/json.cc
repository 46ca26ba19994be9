#include "format/json.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace rankhouse::format {
namespace {

constexpr int64_t kFormatVersion = 1;

// How many letters must be put in, taken out or exchanged to make one text of the other (Levenshtein).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t exchanged = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The known key that was probably meant, or an empty text.
std::string_view Nearest(std::string_view key, std::initializer_list<std::string_view> known) {
  std::string_view nearest;
  size_t least = 0;
  for (const std::string_view candidate : known) {
    const size_t distance = Distance(key, candidate);
    const bool is_near = 2 * distance <= std::max(key.size(), candidate.size());
    if (is_near && (nearest.empty() || distance < least)) nearest = candidate, least = distance;
  }
  return nearest;
}

std::string Joined(std::initializer_list<std::string_view> parts) {
  std::vector<std::string_view> sorted(parts);
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const std::string_view part : sorted) text.append(text.empty() ? "" : ", ").append(part);
  return text;
}

}  // namespace

Json ParseObject(const std::string& where, std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto refuse_twice = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      RequireIntact(keys.back().insert(key).second, where, "is not valid JSON (the key '", key,
                    "' stands twice); restore it from another copy");
    }
    return true;
  };
  try {
    Json document = Json::parse(text, refuse_twice);
    RequireIntact(document.is_object(), where, "expected a JSON object, found ", document.type_name());
    return document;
  } catch (const Json::exception& error) {
    // It shows what it met, which need not be UTF-8, as messages are.
    std::string found = error.what();
    std::replace_if(found.begin(), found.end(), [](char c) { return static_cast<signed char>(c) < ' '; }, '?');
    throw Error(RH_CORRUPT, StrCat(where, ": is not valid JSON (", found, "); restore it from another copy"));
  }
}

void CheckFormat(const std::string& where, const Json& document, const std::string& kind) {
  const std::string format = StringMember(where, document, "format");
  RequireIntact(format == "rankhouse." + kind, where, "expected the format 'rankhouse.", kind, "', found '", format,
                "'; is it the right folder?");
  const int64_t version = IntegerMember(where, document, "format_version");
  RequireIntact(version >= 1, where, "expected a format_version of 1 or more, found ", version);
  RequireIntact(version <= kFormatVersion, where, "has format_version ", version, ", this release reads up to ",
                kFormatVersion, "; use a newer Rankhouse");
}

void CheckKeys(const std::string& where, const Json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string_view nearest = Nearest(key, known);
    RequireIntact(!nearest.empty(), where, "has the unknown key '", key, "'; known are ", Joined(known));
    RequireIntact(false, where, "has the unknown key '", key, "'; did you mean '", nearest, "'?");
  }
}

const Json& Member(const std::string& where, const Json& object, const std::string& key) {
  const auto found = object.find(key);
  RequireIntact(found != object.end(), where, "lacks the key '", key, "'");
  return *found;
}

const Json& ArrayMember(const std::string& where, const Json& object, const std::string& key) {
  const Json& value = Member(where, object, key);
  RequireIntact(value.is_array(), where, "expected a list under '", key, "', found ", value.type_name());
  return value;
}

const Json& ObjectMember(const std::string& where, const Json& object, const std::string& key) {
  const Json& value = Member(where, object, key);
  RequireIntact(value.is_object(), where, "expected an object under '", key, "', found ", value.type_name());
  return value;
}

std::string StringMember(const std::string& where, const Json& object, const std::string& key) {
  const Json& value = Member(where, object, key);
  RequireIntact(value.is_string(), where, "expected a text under '", key, "', found ", value.type_name());
  return value.get<std::string>();
}

int64_t IntegerMember(const std::string& where, const Json& object, const std::string& key) {
  const Json& value = Member(where, object, key);
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  RequireIntact(fits, where, "expected a 64-bit integer under '", key, "', found ", value.type_name());
  return value.get<int64_t>();
}

}  // namespace rankhouse::format
