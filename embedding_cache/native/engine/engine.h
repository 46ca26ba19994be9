// The engine: what its versions share, and how they are opened.
#ifndef RANKHOUSE_ENGINE_ENGINE_H_
#define RANKHOUSE_ENGINE_ENGINE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/hot_row_keeper.h"
#include "engine/options.h"
#include "engine/row_file.h"
#include "engine/table.h"
#include "engine/version.h"

namespace rankhouse::engine {

// Any thread may call it. Versions keep what they use: they outlive the engine.
//
// Lock order: opening_, then versions_mutex_, then those of RowFiles and RowIndices. Lookups on the CPU in mapped rows
// take none; those of remote rows and on a GPU take short ones of their tiers (Cluster, Node, DeviceTier, row caches),
// none of these, and none is held while a reply or a GPU is waited for.
class Engine {
 public:
  // Throws Error where options contradict each other, or a file of hot rows is damaged.
  explicit Engine(const Options& options);

  // rh_engine_open. The same version, opened twice, is one. Throws Error.
  std::shared_ptr<const Version> Open(const std::string& store, const std::string& name, bool verify);

  // rh_engine_metrics.
  std::string Metrics();

 private:
  using Key = std::pair<std::string, std::string>;  // a version's name, and the SHA-256 of its manifest

  std::shared_ptr<const Version> OpenBy(int32_t num_threads, const std::string& store, const std::string& given,
                                        bool verify);
  std::vector<Table> OpenRemoteTables(const std::string& name, const Manifest& manifest);
  std::vector<std::shared_ptr<const Version>> versions();
  void AppendTiers(MetricsText* text);
  std::shared_ptr<const Version> Find(const Key& key);  // NULL: it is not open
  std::vector<std::vector<int64_t>> WarmTables(const std::string& store, const Manifest& manifest,
                                               int64_t first_new_file, std::vector<Table>* tables);

  const Options options_;
  RowFiles files_;
  RowIndices indices_;
  const std::shared_ptr<RemoteTier> remote_;  // NULL: rows are in local files
  const std::shared_ptr<DeviceTier> device_;  // NULL: there is no GPU
  std::mutex opening_;                        // versions are opened one after the other
  std::mutex versions_mutex_;                 // guards what follows
  std::map<Key, std::weak_ptr<const Version>> versions_;
  std::unique_ptr<HotRowKeeper> hot_rows_;  // NULL: what is hot is not kept
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ENGINE_H_
