#include "engine/engine.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>

#include "core/status.h"
#include "cpu/parallel.h"
#include "engine/background.h"
#include "engine/device_lookup.h"
#include "engine/warm.h"
#include "redis/options.h"
#include "redis/redis_tier.h"

namespace rankhouse::engine {
namespace {

namespace fs = std::filesystem;

bool IsComplete(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "manifest.json", ignored);
}

// The newest version's name: that of the highest sequence number.
std::string Latest(const std::string& store) {
  std::string latest;
  std::error_code error;
  for (fs::directory_iterator entry(store + "/versions", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    const std::pair<int64_t, std::string> rank = {SequenceOf(name), name};
    if (rank.first > 0 && rank > std::make_pair(SequenceOf(latest), latest) && IsComplete(entry->path())) latest = name;
  }
  if (!latest.empty()) return latest;
  throw Error(RH_NOT_FOUND, StrCat(store, ": has no version; `rankhouse export` writes one"));
}

std::string Resolved(const std::string& store, const std::string& name) {
  if (name.empty() || name == "latest") return Latest(store);
  const bool is_name = SequenceOf(name) >= 0 || (name[0] == '.' && name.find('/') == std::string::npos);
  if (is_name && IsComplete(fs::path(store) / "versions" / name)) return name;
  throw Error(RH_NOT_FOUND, StrCat(store, ": has no version '", name, "'"));
}

// Refuses a version that is not its parent's continuation, where the parent is still there.
void CheckParent(const std::string& store, const Manifest& manifest) {
  if (manifest.parent_name.empty()) return;
  std::optional<Manifest> parent;
  try {
    parent = ReadManifest(store + "/versions/" + manifest.parent_name, manifest.parent_name);
  } catch (const Error&) {  // It was collected, or is refused where it is opened; this version is complete without it.
    return;
  }
  const auto refuse = [&](const std::string& what) {
    throw Error(RH_BAD_MANIFEST, StrCat(manifest.path, ": does not continue its parent ", manifest.parent_name, ": ",
                                        what, " is not the one there; export the version again"));
  };
  if (parent->sha256 != manifest.parent_sha256) refuse("the hash of its parent's manifest");
  for (const TableRecord& table : parent->tables) {
    const auto continues = [&](const TableRecord& later) { return table.IsBeginningOf(later); };
    if (std::none_of(manifest.tables.begin(), manifest.tables.end(), continues)) refuse("table '" + table.name + "'");
  }
}

// Calls verify(i) for each i of [0, count) on several threads; throws what the first one that failed threw.
template <typename Verify>
void ForAll(int64_t count, int32_t num_threads, Verify verify) {
  std::vector<std::exception_ptr> failures(count);
  rh_executor executor = {};
  executor.num_threads = num_threads;
  ForEach(&executor, count, 1, int64_t{1} << 30, [&](int64_t i) {
    try {
      verify(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

// The files of a version that are no tables'.
void CheckOwnFiles(const std::string& store, const std::string& folder, const Manifest& manifest, bool verify) {
  for (const auto& [name, record] : manifest.files) OpenFile(folder + "/" + name).Check(record, verify);
  for (const FileRecord& layer : manifest.vocabularies) OpenFile(SharedPath(store, layer)).Check(layer, verify);
}

std::vector<Table> OpenTables(const std::string& store, const Manifest& manifest, const Options& options,
                              RowFiles* files, RowIndices* indices, bool verify) {
  std::vector<std::shared_ptr<RowFile>> opened;
  for (const TableRecord& record : manifest.tables) {
    for (int64_t number = 0; number < record.num_files(); ++number) {
      opened.push_back(files->Open(store, record.file(number)));
    }
  }
  // A file may be of several tables.
  std::sort(opened.begin(), opened.end());
  opened.erase(std::unique(opened.begin(), opened.end()), opened.end());
  ForAll(static_cast<int64_t>(opened.size()), options.num_threads, [&](int64_t i) {
    if (verify) opened[i]->Verify(files->counters());
    opened[i]->EnterPages();
  });
  std::vector<Table> tables;
  for (const TableRecord& record : manifest.tables) {
    tables.push_back(OpenTable(store, record, options, files, indices));
  }
  return tables;
}

std::shared_ptr<DeviceTier> DeviceTierOf(const Options& options) {
  if (options.device < 0) return nullptr;
  return std::make_shared<DeviceTier>(options.device, options.device_cache_bytes, options.device_cache_policy);
}

std::shared_ptr<RemoteTier> RemoteTierOf(const Options& options) {
  if (options.redis.empty()) return nullptr;
  redis::Options client = redis::Options::Parse(options.redis);
  const RemoteTier::Options remote = {options.cache_bytes, options.cache_policy, options.uses_default_row,
                                      client.deadline};
  return std::make_shared<RemoteTier>(std::make_unique<redis::RedisTier>(std::move(client)), remote);
}

}  // namespace

Engine::Engine(const Options& options)
    : options_(options), files_(options.memory), remote_(RemoteTierOf(options)), device_(DeviceTierOf(options)) {
  if (!options.hot_rows.empty()) hot_rows_ = std::make_unique<HotRowKeeper>(options.hot_rows);
}

std::vector<Table> Engine::OpenRemoteTables(const std::string& name, const Manifest& manifest) {
  remote_->Check(name, manifest.sha256);
  std::vector<Table> tables;
  for (const TableRecord& record : manifest.tables) {
    tables.push_back(OpenRemoteTable(manifest, record, options_, remote_, &indices_, files_.counters()));
  }
  return tables;
}

// Connects tables with what is known to be hot in them, and reads that, as far as it does not lie in local files that
// versions had open before: those with numbers below `first_new_file`. Returns the places of these rows, by table;
// none where a tier did not give all of them.
std::vector<std::vector<int64_t>> Engine::WarmTables(const std::string& store, const Manifest& manifest,
                                                     int64_t first_new_file, std::vector<Table>* tables) {
  WarmReport report;
  std::vector<std::vector<int64_t>> places;
  for (Table& table : *tables) {
    table.hot = hot_rows_->rows().Table(manifest.model, table.record.name);
    std::vector<bool> is_new(table.record.num_files(), true);
    for (int64_t i = 0; remote_ == nullptr && i < table.record.num_files(); ++i) {
      is_new[i] = files_.Open(store, table.record.file(i))->number() >= first_new_file;
    }
    places.push_back(HotPlaces(table, table.hot->Top(std::numeric_limits<int64_t>::max()), is_new));
    Warm(table, places.back(), &report);
  }
  hot_rows_->counters().warmed += report.num_warmed;
  hot_rows_->counters().missed += report.num_missed;
  if (report.num_missed == 0) return places;
  if (options_.requires_warm_up) {
    throw TierError(StrCat(report.num_missed, " of ", report.num_missed + report.num_warmed, " hot rows of model '",
                           manifest.model,
                           "' did not come by the deadline, and 'if_warm_up_fails' is 'error': see to "
                           "the tier, or set it to 'open'"));
  }
  return {};
}

// As fast as it goes where nobody can be looking anything up yet, else so that lookups hardly feel it.
std::shared_ptr<const Version> Engine::Open(const std::string& store, const std::string& name, bool verify) {
  const std::lock_guard<std::mutex> opening(opening_);
  if (versions().empty()) return OpenBy(options_.num_threads, store, name, verify);
  std::shared_ptr<const Version> version;
  RunInBackground([&] { version = OpenBy(1, store, name, verify); });
  return version;
}

std::shared_ptr<const Version> Engine::OpenBy(int32_t num_threads, const std::string& store, const std::string& given,
                                              bool verify) {
  const std::string name = Resolved(store, given);
  const std::string folder = store + "/versions/" + name;
  Manifest manifest = ReadManifest(folder, name);
  CheckParent(store, manifest);
  CheckOwnFiles(store, folder, manifest, verify);
  const int64_t first_new_file = files_.counters()->files_opened;
  Options opening = options_;
  opening.num_threads = num_threads;
  std::vector<Table> tables = remote_ != nullptr ? OpenRemoteTables(name, manifest)
                                                 : OpenTables(store, manifest, opening, &files_, &indices_, verify);
  for (Table& table : tables) {
    if (device_ != nullptr) table.device_cache = device_->caches().Of(table.record.row_bytes(), manifest);
  }
  std::vector<std::vector<int64_t>> hot;
  if (hot_rows_ != nullptr) hot = WarmTables(store, manifest, first_new_file, &tables);
  const Key key = {name, manifest.sha256};
  if (std::shared_ptr<const Version> version = Find(key)) return version;
  const auto version =
      std::make_shared<const Version>(store, folder, name, std::move(manifest), std::move(tables), options_, device_);
  if (device_ != nullptr) WarmDevice(*version, hot);
  const std::lock_guard<std::mutex> lock(versions_mutex_);
  versions_[key] = version;
  return version;
}

std::shared_ptr<const Version> Engine::Find(const Key& key) {
  const std::lock_guard<std::mutex> lock(versions_mutex_);
  const auto known = versions_.find(key);
  return known != versions_.end() ? known->second.lock() : nullptr;
}

std::vector<std::shared_ptr<const Version>> Engine::versions() {
  const std::lock_guard<std::mutex> lock(versions_mutex_);
  std::vector<std::shared_ptr<const Version>> versions;
  for (auto known = versions_.begin(); known != versions_.end();) {
    std::shared_ptr<const Version> version = known->second.lock();
    known = version != nullptr ? std::next(known) : versions_.erase(known);
    if (version != nullptr) versions.push_back(std::move(version));
  }
  return versions;
}

std::string Engine::Metrics() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::vector<CountedVersion> counted;
  for (const std::shared_ptr<const Version>& version : versions()) {
    CountedVersion one = {Label("model", version->manifest().model) + "," + Label("version", version->name()),
                          {},
                          version->metrics().totals(),
                          std::max(0.0, now.count() - version->manifest().created_seconds)};
    for (const Table& table : version->tables()) one.tables.push_back(table.record.name);
    counted.push_back(std::move(one));
  }
  MetricsText text;
  AppendVersions(counted, {device_ != nullptr, remote_ != nullptr}, &text);
  AppendTiers(&text);
  const auto add = [&](const char* name, const char* help, int64_t count) {
    text.Begin(name, "counter", help);
    text.Add("", static_cast<double>(count));
  };
  add("rankhouse_embedding_files_opened_total", "Files of tables opened.", files_.counters()->files_opened);
  add("rankhouse_embedding_verified_bytes_total", "Bytes of tables' files read to compare them.",
      files_.counters()->bytes_verified);
  add("rankhouse_embedding_index_entries_total", "Ids of deltas written into indices.",
      files_.counters()->index_entries);
  if (hot_rows_ == nullptr) return text.text();
  const HotRowCounters& hot = hot_rows_->counters();
  add("rankhouse_embedding_warmed_rows_total", "Hot rows read before their version was opened.", hot.warmed);
  add("rankhouse_embedding_warm_up_missed_rows_total",
      "Hot rows that a tier did not give before their version was opened.", hot.missed);
  add("rankhouse_embedding_hot_rows_saved_total", "Times that files of hot rows were written.", hot.saved);
  add("rankhouse_embedding_hot_rows_failed_total", "Times that writing them failed.", hot.failed);
  return text.text();
}

void Engine::AppendTiers(MetricsText* text) {
  const CacheTotals device = device_ != nullptr ? device_->cache_totals() : CacheTotals();
  const CacheTotals cache = remote_ != nullptr ? remote_->cache_totals() : CacheTotals();
  const auto append = [&](int64_t CacheTotals::* member) {
    if (device_ != nullptr) text->Add(Label("tier", "device"), static_cast<double>(device.*member));
    if (remote_ != nullptr) text->Add(Label("tier", "cache"), static_cast<double>(cache.*member));
  };
  text->Begin("rankhouse_embedding_bytes", "gauge",
              "Rows in files that are open, and memory of caches, in bytes, by where they lie.");
  text->Add(Label("tier", "memory"), static_cast<double>(files_.bytes()));
  append(&CacheTotals::bytes);
  if (device_ != nullptr || remote_ != nullptr) {
    text->Begin("rankhouse_embedding_evictions_total", "counter", "Rows that made way for others in caches.");
    append(&CacheTotals::num_evicted);
  }
  if (remote_ == nullptr) return;
  text->Begin("rankhouse_embedding_tier_failures_total", "counter", "Batches whose rows a tier did not give in time.");
  text->Add(Label("tier", "redis"), static_cast<double>(remote_->num_failures()));
}

}  // namespace rankhouse::engine
