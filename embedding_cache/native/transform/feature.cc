#include "transform/feature.h"

#include <cmath>
#include <limits>
#include <set>

namespace rankhouse::transform {
namespace {

using format::Json;
using format::RequireIntact;

bool IsGiven(const Json& entry, const char* key) { return entry.contains(key) && !entry[key].is_null(); }

bool Flag(const std::string& where, const Json& entry, const char* key) {
  if (!entry.contains(key)) return false;
  RequireIntact(entry[key].is_boolean(), where, "expected true or false under '", key, "', found ",
                entry[key].type_name());
  return entry[key].get<bool>();
}

std::optional<double> Number(const std::string& where, const Json& entry, const char* key) {
  if (!IsGiven(entry, key)) return std::nullopt;
  RequireIntact(entry[key].is_number(), where, "expected a number under '", key, "', found ", entry[key].type_name());
  return entry[key].get<double>();
}

DenseSteps ParseSteps(const std::string& where, const Json& entry) {
  RequireIntact(entry.is_object(), where, "expected an object under 'steps', found ", entry.type_name());
  format::CheckKeys(where, entry, {"fill", "clip_min", "clip_max", "log", "mean", "std"});
  DenseSteps steps;
  steps.fill = Number(where, entry, "fill").value_or(0);
  steps.clip_min = Number(where, entry, "clip_min");
  steps.clip_max = Number(where, entry, "clip_max");
  steps.log = Flag(where, entry, "log");
  steps.mean = Number(where, entry, "mean");
  steps.std = Number(where, entry, "std");
  for (const double factor : {steps.mean.value_or(0), steps.std.value_or(0)}) {
    RequireIntact(!steps.log || std::fabs(factor) <= std::numeric_limits<float>::max(), where, "has the mean or std ",
                  factor, " after log, where all is in float32");
  }
  return steps;
}

RawType ParseRawType(const std::string& where, const std::string& name) {
  if (name == "int64") return RawType::kInt64;
  if (name == "float64") return RawType::kFloat64;
  RequireIntact(name == "text", where, "has dtype '", name, "'; expected 'int64', 'float64' or 'text'");
  return RawType::kText;
}

Feature ParseFeature(const std::string& where, const Json& entry) {
  RequireIntact(entry.is_object(), where, "expected an object for each feature, found ", entry.type_name());
  Feature feature;
  feature.name = format::StringMember(where, entry, "name");
  const std::string here = where + ": feature '" + feature.name + "'";
  format::CheckKeys(here, entry, {"name", "kind", "dtype", "is_list", "steps", "table", "dim", "combiner"});
  const std::string kind = format::StringMember(here, entry, "kind");
  RequireIntact(kind == "continuous" || kind == "categorical", here, "has kind '", kind,
                "'; expected 'continuous' or 'categorical'");
  feature.is_continuous = kind == "continuous";
  feature.dtype = ParseRawType(here, format::StringMember(here, entry, "dtype"));
  feature.is_list = Flag(here, entry, "is_list");
  RequireIntact(!feature.is_continuous || IsGiven(entry, "steps"), here, "is continuous and has no steps");
  if (IsGiven(entry, "steps")) feature.steps = ParseSteps(here, entry["steps"]);
  if (IsGiven(entry, "table")) feature.table = format::StringMember(here, entry, "table");
  return feature;
}

}  // namespace

std::vector<Feature> ParseFeatures(const std::string& where, const Json& entries) {
  std::vector<Feature> features;
  std::set<std::string> names;
  for (const Json& entry : entries) {
    features.push_back(ParseFeature(where, entry));
    const std::string& name = features.back().name;
    RequireIntact(names.insert(name).second, where, "feature '", name, "' stands twice");
  }
  return features;
}

}  // namespace rankhouse::transform
