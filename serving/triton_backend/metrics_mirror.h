// The engine's counters in Triton's metrics endpoint.
#ifndef RANKHOUSE_TRITON_BACKEND_METRICS_MIRROR_H_
#define RANKHOUSE_TRITON_BACKEND_METRICS_MIRROR_H_

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "metrics_text.h"
#include "rankhouse/engine.h"
#include "triton_api.h"

namespace rankhouse::triton {

// Copies the engine's counters to metrics of Triton's, which asks nobody when it is scraped: so a thread copies them
// once a second, as long as this exists, and tries again where that fails. What the engine no longer names, because its
// version was closed, goes.
//
// Triton cannot be given a histogram's counts, only single observations. A histogram is therefore a counter for each
// of its buckets, its sum and its count, of the names that Prometheus gives them: queries are the same.
class MetricsMirror {
 public:
  explicit MetricsMirror(rh_engine* engine);
  ~MetricsMirror();

 private:
  struct Family {
    TRITONSERVER_MetricFamily* family;
    bool is_counter;
  };
  struct Metric {
    TRITONSERVER_Metric* metric;
    bool is_counter;
    double value;
  };

  void Run();
  void Copy();
  void LogOnce(const std::exception& error);
  void Set(const MetricsText& metrics, const Sample& sample, const std::string& key);
  const Family& FamilyOf(const MetricsText& metrics, const std::string& name);
  void RemoveAllBut(const std::set<std::string>& keys);

  rh_engine* engine_;
  std::string text_;
  std::string logged_;                      // the last error's message: one that stays is not worth a line each second
  std::map<std::string, Family> families_;  // by name; for good, as Triton cannot have one name twice
  std::map<std::string, Metric> metrics_;   // by name and labels
  std::mutex mutex_;                        // guards is_ending_
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::thread thread_;  // uses all the others but these three
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_METRICS_MIRROR_H_
