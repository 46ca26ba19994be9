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
enum TableCounter {
  kIds,
  kUnknown,
  kUnique,
  kOnDevice,
  kCached,
  kRemote,
  kDegraded,
  kWithoutRow,  // unknown ids that no row stands in for
  kNumTableCounters
};

// What is timed: whole lookups, and what they spend in each tier.
enum Timed { kLookupTime, kDeviceTime, kMemoryTime, kCacheTime, kRedisTime, kNumTimed };

// Upper bounds of the latency histogram's buckets, in seconds.
constexpr std::array<double, 16> kLatencyBounds = {5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,   1e-3,
                                                   2e-3, 5e-3, 1e-2,   2e-2, 5e-2, 1e-1,   2.5e-1, 1.0};

template <typename Count>
struct Histogram {
  std::array<Count, kLatencyBounds.size() + 1> buckets{};  // the last is beyond all bounds
  Count nanoseconds{0};                                    // of all together
};

struct VersionTotals {
  std::vector<std::array<int64_t, kNumTableCounters>> tables;
  std::array<Histogram<int64_t>, kNumTimed> times;
};

// Any thread may call it.
class VersionMetrics {
 public:
  explicit VersionMetrics(int64_t num_tables);

  void Add(int64_t table, TableCounter counter, int64_t count) {
    if (count == 0) return;
    mine().tables[table].counts[counter].fetch_add(count, std::memory_order_relaxed);
  }
  void AddTime(Timed what, std::chrono::nanoseconds duration);

  // Whether a lookup that begins is one of those that stand for kSampleEvery in what is too dear to count each time.
  // Threads that share a shard may both count the same number, which costs less than to count exactly.
  bool IsSampled() {
    std::atomic<int64_t>& num_begun = mine().num_begun;
    const int64_t number = num_begun.load(std::memory_order_relaxed) + 1;
    num_begun.store(number, std::memory_order_relaxed);
    return number % kSampleEvery == 0;
  }
  static constexpr int64_t kSampleEvery = 256;

  VersionTotals totals() const;

 private:
  static constexpr int kShards = 16;

  struct alignas(64) TableCounts {
    std::array<std::atomic<int64_t>, kNumTableCounters> counts{};
  };
  struct alignas(64) Shard {
    std::vector<TableCounts> tables;
    std::array<Histogram<std::atomic<int64_t>>, kNumTimed> times;
    std::atomic<int64_t> num_begun{0};  // lookups
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

// key="value", the value escaped.
std::string Label(const char* key, const std::string& value);

// Appends what the versions have counted. labels: model and version, of each.
struct CountedVersion {
  std::string labels;
  std::vector<std::string> tables;
  VersionTotals totals;
  double age_seconds;
};
struct Tiers {
  bool has_device;
  bool is_remote;  // rows lie in Redis, with a cache in front of it
};
void AppendVersions(const std::vector<CountedVersion>& versions, const Tiers& tiers, MetricsText* text);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_METRICS_H_
