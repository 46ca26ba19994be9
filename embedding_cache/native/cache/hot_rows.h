// Which rows of each table are hot, learnt from live traffic, kept in files, and read back by the next process, so that
// it has them at hand before its first request.
#ifndef RANKHOUSE_CACHE_HOT_ROWS_H_
#define RANKHOUSE_CACHE_HOT_ROWS_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cache/hot_table.h"

namespace rankhouse::cache {

// The hot rows of all tables of all models of a process. Any thread may call everything.
class HotRows {
 public:
  explicit HotRows(const HotRowOptions& options = {}) : options_(options) {}

  // The sketch of a table, shared by all versions of its model; it is made when it is first asked for. Ask once when a
  // version is opened: this takes a lock. Throws Error where the model's name cannot stand in a file's.
  std::shared_ptr<HotTable> Table(const std::string& model, const std::string& table);

  // Writes <folder>/<model>.hot_rows.safetensors for each model, each whole or not at all. Makes the folder. Throws
  // Error that names the file.
  void Save(const std::string& folder) const;

  // Adds what Save wrote, where there is anything: a folder that is not there or empty is no error. Throws Error
  // (RH_CORRUPT) that names a file which is not what Save writes; nothing of that file is added then.
  void Load(const std::string& folder);

 private:
  using Tables = std::map<std::string, std::shared_ptr<HotTable>>;

  const HotRowOptions options_;
  mutable std::mutex saving_;  // one Save at a time; taken before mutex_
  mutable std::mutex mutex_;   // guards models_
  std::map<std::string, Tables> models_;
};

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_HOT_ROWS_H_
