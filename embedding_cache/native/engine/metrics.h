// The counters of an open version, and their text.
//
// Lookups count into one of several copies of the counters, chosen by thread, so that threads seldom share a cache
// line.
#ifndef RANKHOUSE_ENGINE_METRICS_H_
#define RANKHOUSE_ENGINE_METRICS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace rankhouse::engine {

// Of one table. Its order is that of kTableMetrics in metrics.cc.
enum TableCounter { kIds, kUnknown, kUnique, kCached, kRemote, kDegraded, kNumTableCounters };

// Upper bounds of the latency histogram's buckets, in seconds.
constexpr std::array<double, 16> kLatencyBounds = {5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,   1e-3,
                                                   2e-3, 5e-3, 1e-2,   2e-2, 5e-2, 1e-1,   2.5e-1, 1.0};

struct VersionTotals {
  std::vector<std::array<int64_t, kNumTableCounters>> tables;
  std::array<int64_t, kLatencyBounds.size() + 1> latencies;  // lookups by bucket; the last is beyond all bounds
  int64_t nanoseconds = 0;                                   // of all lookups together
};

// Any thread may call it.
class VersionMetrics {
 public:
  explicit VersionMetrics(int64_t num_tables);

  void Add(int64_t table, TableCounter counter, int64_t count) {
    if (count == 0) return;
    mine().tables[table].counts[counter].fetch_add(count, std::memory_order_relaxed);
  }
  void AddLookup(std::chrono::nanoseconds duration);

  VersionTotals totals() const;

 private:
  static constexpr int kShards = 16;

  struct alignas(64) TableCounts {
    std::array<std::atomic<int64_t>, kNumTableCounters> counts{};
  };
  struct alignas(64) Shard {
    std::vector<TableCounts> tables;
    std::array<std::atomic<int64_t>, kLatencyBounds.size() + 1> latencies{};
    std::atomic<int64_t> nanoseconds{0};
  };

  Shard& mine();

  std::array<Shard, kShards> shards_;
};

// Prometheus' text format, version 0.0.4.
class MetricsText {
 public:
  // Begins a metric. type: "counter", "gauge" or "histogram".
  void Begin(const std::string& name, const char* type, const char* help);

  // Adds a sample of the metric that was begun; `suffix` follows its name.
  void Add(const std::string& labels, double value, const char* suffix = "");

  const std::string& text() const { return text_; }

 private:
  std::string name_;
  std::string text_;
};

// The label of a histogram's bucket: its upper bound in seconds.
std::string BoundLabel(size_t bucket);

// key="value", the value escaped.
std::string Label(const char* key, const std::string& value);

// Appends what the versions have counted. labels: model and version, of each.
struct CountedVersion {
  std::string labels;
  std::vector<std::string> tables;
  VersionTotals totals;
  double age_seconds;
};
void AppendVersions(const std::vector<CountedVersion>& versions, MetricsText* text);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_METRICS_H_
