#include "engine/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace rankhouse::engine {
namespace {

struct TableMetric {
  const char* name;
  const char* help;
};

// In the order of TableCounter; hits are told apart by tier.
constexpr TableMetric kTableMetrics[] = {
    {"rankhouse_embedding_ids_total", "Ids looked up."},
    {"rankhouse_embedding_unknown_ids_total", "Ids that were no rows of their table."},
    {"rankhouse_embedding_unique_ids_total",
     "Ids looked up, each once for a batch. On the CPU, where rows are in memory, an estimate: of one lookup in 256 of "
     "a "
     "thread, counted 256 times."},
    {nullptr, nullptr},
    {nullptr, nullptr},
    {nullptr, nullptr},
    {"rankhouse_embedding_degraded_total", "Ids whose row was replaced by the default one, as a tier had failed."},
    {"rankhouse_embedding_without_row_total",
     "Unknown ids that no row stands in for. With hits and degraded ones, these are all ids."},
};

int NextShard() {
  static std::atomic<int> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void AppendCounters(const std::vector<CountedVersion>& versions, MetricsText* text) {
  for (int counter = 0; counter < kNumTableCounters; ++counter) {
    if (kTableMetrics[counter].name == nullptr) continue;
    text->Begin(kTableMetrics[counter].name, "counter", kTableMetrics[counter].help);
    for (const CountedVersion& version : versions) {
      for (size_t t = 0; t < version.tables.size(); ++t) {
        text->Add(version.labels + "," + Label("table", version.tables[t]), version.totals.tables[t][counter]);
      }
    }
  }
}

void AppendHits(const std::vector<CountedVersion>& versions, const Tiers& tiers, MetricsText* text) {
  text->Begin("rankhouse_embedding_hits_total", "counter",
              "Ids whose row a tier had; an unknown one's is the row that stands in for it, if any.");
  for (const CountedVersion& version : versions) {
    for (size_t t = 0; t < version.tables.size(); ++t) {
      const auto& counts = version.totals.tables[t];
      const std::string labels = version.labels + "," + Label("table", version.tables[t]) + ",";
      const int64_t elsewhere = counts[kOnDevice] + counts[kCached] + counts[kRemote] + counts[kDegraded];
      const int64_t in_memory = std::max<int64_t>(counts[kIds] - counts[kWithoutRow] - elsewhere, 0);
      if (tiers.has_device) text->Add(labels + Label("tier", "device"), counts[kOnDevice]);
      text->Add(labels + Label("tier", "memory"), in_memory);
      if (!tiers.is_remote) continue;
      text->Add(labels + Label("tier", "cache"), counts[kCached]);
      text->Add(labels + Label("tier", "redis"), counts[kRemote]);
    }
  }
}

// The label of a histogram's bucket: its upper bound in seconds.
std::string BoundLabel(size_t bucket) {
  char bound[32] = "+Inf";
  if (bucket < kLatencyBounds.size()) std::snprintf(bound, sizeof(bound), "%g", kLatencyBounds[bucket]);
  return Label("le", bound);
}

void AppendHistogram(const std::string& labels, const Histogram<int64_t>& times, MetricsText* text) {
  int64_t count = 0;
  for (size_t bucket = 0; bucket < times.buckets.size(); ++bucket) {
    count += times.buckets[bucket];
    text->Add(labels + "," + BoundLabel(bucket), count, "_bucket");
  }
  text->Add(labels, times.nanoseconds * 1e-9, "_sum");
  text->Add(labels, count, "_count");
}

void AppendTimes(const std::vector<CountedVersion>& versions, const Tiers& tiers, MetricsText* text) {
  text->Begin("rankhouse_embedding_lookup_seconds", "histogram", "Time of a lookup, all tables together.");
  for (const CountedVersion& version : versions)
    AppendHistogram(version.labels, version.totals.times[kLookupTime], text);
  text->Begin("rankhouse_embedding_tier_seconds", "histogram",
              "Time of a lookup in a tier, all tables together: device, to find rows and bring it those that it lacks; "
              "memory, to read rows, on the CPU with pooling, of one lookup in 256 of a thread; cache, to find rows; "
              "redis, to read them.");
  for (const CountedVersion& version : versions) {
    const auto append = [&](const char* tier, Timed what) {
      AppendHistogram(version.labels + "," + Label("tier", tier), version.totals.times[what], text);
    };
    if (tiers.has_device) append("device", kDeviceTime);
    if (!tiers.is_remote) append("memory", kMemoryTime);
    if (tiers.is_remote) append("cache", kCacheTime);
    if (tiers.is_remote) append("redis", kRedisTime);
  }
}

}  // namespace

VersionMetrics::VersionMetrics(int64_t num_tables) {
  for (Shard& shard : shards_) shard.tables = std::vector<TableCounts>(num_tables);
}

VersionMetrics::Shard& VersionMetrics::mine() {
  thread_local const int shard = NextShard() % kShards;
  return shards_[shard];
}

void VersionMetrics::AddTime(Timed what, std::chrono::nanoseconds duration) {
  const double seconds = duration.count() * 1e-9;
  const auto bucket = std::lower_bound(kLatencyBounds.begin(), kLatencyBounds.end(), seconds) - kLatencyBounds.begin();
  Histogram<std::atomic<int64_t>>& times = mine().times[what];
  times.buckets[bucket].fetch_add(1, std::memory_order_relaxed);
  times.nanoseconds.fetch_add(duration.count(), std::memory_order_relaxed);
}

VersionTotals VersionMetrics::totals() const {
  VersionTotals totals = {};
  totals.tables.resize(shards_[0].tables.size());
  for (const Shard& shard : shards_) {
    for (size_t t = 0; t < shard.tables.size(); ++t) {
      for (int counter = 0; counter < kNumTableCounters; ++counter) {
        totals.tables[t][counter] += shard.tables[t].counts[counter].load(std::memory_order_relaxed);
      }
    }
    for (int what = 0; what < kNumTimed; ++what) {
      const auto& times = shard.times[what];
      for (size_t bucket = 0; bucket < times.buckets.size(); ++bucket) {
        totals.times[what].buckets[bucket] += times.buckets[bucket].load(std::memory_order_relaxed);
      }
      totals.times[what].nanoseconds += times.nanoseconds.load(std::memory_order_relaxed);
    }
  }
  return totals;
}

void MetricsText::Begin(const std::string& name, const char* type, const char* help) {
  name_ = name;
  text_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void MetricsText::Add(const std::string& labels, double value, const char* suffix) {
  char number[32];
  // Counts are exact; %.17g would write 0.1 as 0.10000000000000001.
  std::snprintf(number, sizeof(number), std::floor(value) == value ? "%.0f" : "%.9g", value);
  text_ += name_ + suffix + (labels.empty() ? "" : "{" + labels + "}") + " " + number + "\n";
}

std::string Label(const char* key, const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? "\\n" : std::string(1, c);
  }
  return std::string(key) + "=\"" + escaped + "\"";
}

void AppendVersions(const std::vector<CountedVersion>& versions, const Tiers& tiers, MetricsText* text) {
  text->Begin("rankhouse_embedding_lookups_total", "counter", "Batches looked up.");
  for (const CountedVersion& version : versions) {
    int64_t count = 0;
    for (const int64_t lookups : version.totals.times[kLookupTime].buckets) count += lookups;
    text->Add(version.labels, count);
  }
  AppendCounters(versions, text);
  AppendHits(versions, tiers, text);
  AppendTimes(versions, tiers, text);
  text->Begin("rankhouse_embedding_version_age_seconds", "gauge", "Time since the version was written.");
  for (const CountedVersion& version : versions) text->Add(version.labels, version.age_seconds);
}

}  // namespace rankhouse::engine
