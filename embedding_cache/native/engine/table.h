// A table of a version that is open.
#ifndef RANKHOUSE_ENGINE_TABLE_H_
#define RANKHOUSE_ENGINE_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/hot_table.h"
#include "engine/device_tier.h"
#include "engine/manifest.h"
#include "engine/options.h"
#include "engine/remote_rows.h"
#include "engine/row_file.h"
#include "engine/row_index.h"
#include "engine/row_source.h"

namespace rankhouse::engine {

// Rows that are in memory, whatever file they are of. Immutable; any thread may call it.
class MappedRows final : public RowSource {
 public:
  // The table's files in their order.
  MappedRows(const TableRecord& table, std::vector<std::shared_ptr<RowFile>> files);

  rh_table Locate(const std::vector<Places>& places, Arena* arena, SourceReport* report) const override;

 private:
  const rh_table memory_;
  const std::vector<std::shared_ptr<RowFile>> files_;
  // Appends the pages that a batch has to ask for first.
  void TakePages(const std::vector<Places>& places, std::vector<const char*>* pages) const;

  const int64_t row_bytes_;
  std::vector<int64_t> row_shifts_;  // from a place's row to its number in memory_: of kNoPlace, then of each file
};

// Immutable; any thread may read it.
struct Table {
  TableRecord record;
  std::shared_ptr<const RowIndex> index;
  std::shared_ptr<const RowSource> source;   // where the rows are in memory
  std::shared_ptr<const RemoteRows> remote;  // where they lie in a tier
  std::vector<int64_t> file_numbers;         // of its files, in caches' keys
  DeviceCaches::Slot device_cache;           // NULL: the engine has no GPU
  int32_t out_of_range;                      // an rh_out_of_range; RH_OOV_ROW stands for kUnknownRow

  // Where `is_direct`, ids are rows of `direct` as they are, and it says what becomes of those that are none. So it is
  // with one base file without deltas.
  bool is_direct;
  rh_table direct;
  AskedPages* direct_pages;  // of the source's only file; NULL: they are all in memory

  std::shared_ptr<cache::HotTable> hot;  // takes note of ids that are looked up; NULL: nobody wants to know
};

// The indices of the tables that are open, by the state of the table: versions that continue an open one extend its
// index. Any thread may call it.
class RowIndices {
 public:
  // Gives the index of a table whose files are open. Throws Error RH_CORRUPT where a delta contradicts itself.
  std::shared_ptr<const RowIndex> Open(const TableRecord& table, const std::vector<std::shared_ptr<RowFile>>& files,
                                       FileCounters* counters);

 private:
  std::mutex mutex_;                                              // guards what follows
  std::map<std::string, std::weak_ptr<const RowIndex>> indices_;  // by TableRecord::ChainBefore
};

// Opens a table of a store's version from local files. Throws Error.
Table OpenTable(const std::string& store, const TableRecord& record, const Options& options, RowFiles* files,
                RowIndices* indices);

// Opens a table whose rows lie in a tier. Throws Error.
Table OpenRemoteTable(const Manifest& manifest, const TableRecord& record, const Options& options,
                      const std::shared_ptr<RemoteTier>& tier, RowIndices* indices, FileCounters* counters);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_TABLE_H_
