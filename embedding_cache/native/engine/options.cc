#include "engine/options.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/json.h"

namespace rankhouse::engine {
namespace {

// The number of the option's value among those that it can have; `otherwise` where it is absent.
int32_t Choice(const JsonObject& options, const char* key, const std::vector<std::string>& choices, int32_t otherwise) {
  if (!options.Has(key)) return otherwise;
  const std::string value = options.Text(key);
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found != choices.end()) return static_cast<int32_t>(found - choices.begin());
  std::string known;
  for (const std::string& choice : choices) known += (known.empty() ? "'" : ", '") + choice + "'";
  options.Check(false, "'", key, "' is '", value, "': expected one of ", known);
  return otherwise;
}

void ParseDevice(const JsonObject& object, Options* options) {
  if (!object.Has("device")) {
    for (const char* key : {"device_cache_bytes", "device_cache_policy"}) {
      object.Check(!object.Has(key), "'", key, "' would not be used: expected a GPU's number under 'device', too");
    }
    return;
  }
  const int64_t device = object.Integer("device", 0);
  object.Check(device <= std::numeric_limits<int32_t>::max(), "'device' is ", device);
  options->device = static_cast<int32_t>(device);
  if (object.Has("device_cache_bytes")) options->device_cache_bytes = object.Integer("device_cache_bytes", 0);
  // In the order of rh_cache_policy.
  options->device_cache_policy = static_cast<cache::Policy>(Choice(object, "device_cache_policy", {"lru", "lfu"}, 0));
}

Options Parse(const std::string& json) {
  Options options;
  const std::string where = "the engine's options";
  const Json value = format::ParseObject(where, json);
  const JsonObject object(
      value, where,
      {"num_threads", "memory", "out_of_range", "rows", "redis", "cache_bytes", "cache_policy", "if_tier_fails",
       "hot_rows", "if_warm_up_fails", "device", "device_cache_bytes", "device_cache_policy"});
  if (object.Has("num_threads")) {
    const int64_t num_threads = object.Integer("num_threads", 0);
    object.Check(num_threads <= std::numeric_limits<int32_t>::max(), "'num_threads' is ", num_threads);
    options.num_threads = static_cast<int32_t>(num_threads);
  }
  options.memory = static_cast<MemoryKind>(Choice(object, "memory", {"map", "pin"}, 0));
  // In the order of rh_out_of_range.
  options.out_of_range = Choice(object, "out_of_range", {"error", "zero", "clip", "unknown_row"}, RH_ERROR);
  if (object.Has("redis")) options.redis = object.Object("redis").dump();
  const bool is_remote = Choice(object, "rows", {"local", "redis"}, 0) == 1;
  object.Check(is_remote == object.Has("redis"), "'rows' is ", is_remote ? "'redis'" : "'local'",
               is_remote ? ": expected an object of the client's options under 'redis'"
                         : ": the options under 'redis' would not be used; leave them out, or set 'rows' to 'redis'");
  if (object.Has("cache_bytes")) options.cache_bytes = object.Integer("cache_bytes", 0);
  // In the order of rh_cache_policy.
  options.cache_policy = static_cast<cache::Policy>(Choice(object, "cache_policy", {"lru", "lfu"}, 0));
  options.uses_default_row = Choice(object, "if_tier_fails", {"error", "default_row"}, 0) == 1;
  if (object.Has("hot_rows")) {
    options.hot_rows = object.Text("hot_rows");
    object.Check(!options.hot_rows.empty(), "'hot_rows' is empty: expected a folder");
  }
  options.requires_warm_up = Choice(object, "if_warm_up_fails", {"open", "error"}, 0) == 1;
  ParseDevice(object, &options);
  return options;
}

}  // namespace

Options ParseOptions(const char* json) {
  try {
    return json == nullptr ? Options() : Parse(json);
  } catch (const Error& error) {
    throw Error(RH_INVALID_ARGUMENT, error.what());
  }
}

}  // namespace rankhouse::engine
