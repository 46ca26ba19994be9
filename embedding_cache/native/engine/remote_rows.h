// Rows that lie in a tier, with a cache in front of it.
#ifndef RANKHOUSE_ENGINE_REMOTE_ROWS_H_
#define RANKHOUSE_ENGINE_REMOTE_ROWS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/row_cache.h"
#include "engine/arena.h"
#include "engine/divided_caches.h"
#include "engine/manifest.h"
#include "engine/metrics.h"
#include "engine/row_file.h"
#include "engine/row_source.h"
#include "engine/row_store.h"

namespace rankhouse::engine {

// A segment or a delta in a tier. Any thread may read it.
class RemoteFile {
 public:
  // `row_bytes` and `num_rows` are what the manifest says. Throws TierError, or Error RH_CORRUPT.
  RemoteFile(RowTier* tier, const FileRecord& record, int64_t row_bytes, int64_t num_rows, int64_t number,
             Deadline deadline);

  const StoredRows& rows() const { return *rows_; }
  // What it says of itself, and the ids of a delta. Its memory has no rows.
  RowFile* description() { return description_.get(); }
  int64_t number() const { return number_; }

 private:
  const int64_t number_;  // among all files of the tier that were opened
  const std::unique_ptr<StoredRows> rows_;
  std::unique_ptr<RowFile> description_;
};

using HostCaches = DividedCaches<cache::RowCache>;

// What remote tables share. Any thread may call it.
class RemoteTier {
 public:
  struct Options {
    int64_t cache_bytes;
    cache::Policy policy;
    bool uses_default_row;  // where the tier fails, instead of an error
    std::chrono::milliseconds deadline;
  };

  RemoteTier(std::unique_ptr<RowTier> tier, const Options& options);

  // Checks that a version is there. Throws TierError.
  void Check(const std::string& version, const std::string& manifest_sha256);

  // Opens a file, or gives it if it is open.
  std::shared_ptr<RemoteFile> Open(const FileRecord& record, int64_t row_bytes, int64_t num_rows);

  // The caches of all tables together.
  HostCaches& caches() { return caches_; }

  // Reads what a lookup asks for, and returns how long the tier took, if it was asked; the time that it may take began
  // at `since`. Where rows do not arrive, it throws TierError, unless default rows are to stand in.
  std::optional<std::chrono::nanoseconds> Read(const std::vector<RowRequest>& requests, Deadline since);

  // Reads one row into out, for a table that is being opened. Throws TierError.
  void ReadRow(const RemoteFile& file, int64_t row, char* out);

  CacheTotals cache_totals();
  int64_t num_failures() const { return num_failures_; }

 private:
  static Deadline Now() { return std::chrono::steady_clock::now(); }

  const std::unique_ptr<RowTier> tier_;
  const Options options_;
  HostCaches caches_;
  std::atomic<int64_t> num_failures_{0};
  std::mutex opening_;                                      // guards what follows; files are opened one after the other
  std::map<std::string, std::weak_ptr<RemoteFile>> files_;  // by SHA-256
  int64_t next_number_ = 0;
};

struct RemoteDemand;
struct RemoteTimes;

// The rows of one table. Immutable but for the cache; any thread may read it.
class RemoteRows {
 public:
  // files: the table's in their order. default_row: what stands in for a row of a tier that failed.
  RemoteRows(const TableRecord& table, std::vector<std::shared_ptr<RemoteFile>> files, std::shared_ptr<RemoteTier> tier,
             HostCaches::Slot cache, std::string default_row);

 private:
  friend class RemoteLookup;
  friend RemoteTimes LocateRemote(std::vector<RemoteDemand>* demands, Arena* arena, Deadline since);

  const rh_table shape_;
  const int64_t row_bytes_;
  const std::shared_ptr<RemoteTier> tier_;  // outlives the files
  const std::vector<std::shared_ptr<RemoteFile>> files_;
  const HostCaches::Slot cache_;
  const std::string default_row_;
};

// What a batch asks of one remote table, and what it gets.
struct RemoteDemand {
  const RemoteRows* rows;
  int32_t table;               // its number
  std::vector<Places> places;  // overwritten by row numbers of `found`; kNoPlace stays
  rh_table found;              // in the arena
  SourceReport report;
  const int64_t* num_ids = nullptr;  // that each place but kNoPlace stands for; NULL: one
};

// How long parts of a lookup took.
struct RemoteTimes {
  std::chrono::nanoseconds cache{0};
  std::optional<std::chrono::nanoseconds> tier;  // none: it was not asked

  void AddTo(VersionMetrics* metrics) const {
    metrics->AddTime(kCacheTime, cache);
    if (tier) metrics->AddTime(kRedisTime, *tier);
  }

  RemoteTimes operator+(const RemoteTimes& other) const {
    if (!tier || !other.tier) return {cache + other.cache, tier ? tier : other.tier};
    return {cache + other.cache, *tier + *other.tier};
  }
};

// Does all demands of a batch at once, all of one tier: it is asked one time, for what no cache has, and has time from
// `since` on. Throws TierError, unless default rows are to stand in.
RemoteTimes LocateRemote(std::vector<RemoteDemand>* demands, Arena* arena, Deadline since);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_REMOTE_ROWS_H_
