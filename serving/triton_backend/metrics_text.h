// Prometheus' text format, as the engine writes its counters.
#ifndef RANKHOUSE_TRITON_BACKEND_METRICS_TEXT_H_
#define RANKHOUSE_TRITON_BACKEND_METRICS_TEXT_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace rankhouse::triton {

struct Sample {
  std::string name;  // of a histogram also <name>_bucket, <name>_sum and <name>_count
  std::vector<std::pair<std::string, std::string>> labels;
  double value;
};

struct MetricsText {
  std::vector<Sample> samples;
  std::map<std::string, std::string> types, helps;  // by the name in # TYPE and # HELP
};

// Throws Failure, with the line, where the text is no such text.
MetricsText ParseMetrics(const std::string& text);

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_METRICS_TEXT_H_
