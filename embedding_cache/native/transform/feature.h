// A feature as raw rows carry it and as the compiled transform treats it.
#ifndef RANKHOUSE_TRANSFORM_FEATURE_H_
#define RANKHOUSE_TRANSFORM_FEATURE_H_

#include <optional>
#include <string>
#include <vector>

#include "format/json.h"

namespace rankhouse::transform {

// How a continuous feature becomes a number of the model: the steps in the order of the fields.
struct DenseSteps {
  double fill = 0;  // stands for a missing value
  std::optional<double> clip_min;
  std::optional<double> clip_max;
  bool log = false;  // log(1 + x), in float32, as all that follows it
  std::optional<double> mean;
  std::optional<double> std;  // divides the difference to the mean, unless it is 0
};

enum class RawType { kInt64, kFloat64, kText };

struct Feature {
  std::string name;
  bool is_continuous = false;
  RawType dtype = RawType::kInt64;
  bool is_list = false;
  DenseSteps steps;   // of a continuous feature
  std::string table;  // of a categorical one
};

// Reads the `features` of transform.json. `where`: the file's path. Throws Error: RH_CORRUPT.
std::vector<Feature> ParseFeatures(const std::string& where, const format::Json& entries);

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_FEATURE_H_
