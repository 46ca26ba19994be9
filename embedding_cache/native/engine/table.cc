#include "engine/table.h"

#include <algorithm>
#include <utility>

#include "core/status.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {
namespace {

// Rows of one feature that are prefetched as soon as it is known where they are: so few that those of all features are
// still in the processor's second cache when they are pooled.
constexpr int64_t kSoonReadBytes = 16 << 10;

// Checks the ids of a delta as far as its file alone says.
void CheckIds(const RowFile& file, const TableRecord& table, const char* what, const std::vector<int64_t>& ids) {
  const auto refuse = [&](const std::string& fault) {
    throw Error(RH_CORRUPT, StrCat(file.path(), ": is no delta of table '", table.name, "': ", fault,
                                   "; export the version again"));
  };
  if (ids.empty()) return;
  if (ids.front() < 0 || ids.back() >= table.num_rows) {
    refuse(StrCat(what, " has ", ids.front(), " to ", ids.back(), ", the table has ", table.num_rows, " rows"));
  }
  const auto falling = std::adjacent_find(ids.begin(), ids.end(), [](int64_t a, int64_t b) { return a >= b; });
  if (falling != ids.end()) {
    refuse(StrCat(what, " is not sorted, or has a row twice: ", falling[0], ", ", falling[1], " at ",
                  falling - ids.begin()));
  }
}

void CheckDisjoint(const RowFile& file, const TableRecord& table, const std::vector<int64_t>& ids,
                   const std::vector<int64_t>& removed) {
  for (auto id = ids.begin(), gone = removed.begin(); id != ids.end() && gone != removed.end();) {
    if (*id == *gone) {
      throw Error(RH_CORRUPT, StrCat(file.path(), ": is no delta of table '", table.name, "': row ", *id,
                                     " is both written and removed; export the version again"));
    }
    *id < *gone ? ++id : ++gone;
  }
}

RowIndex Extended(const RowIndex& index, const TableRecord& table, const RowFile& file, int64_t number,
                  FileCounters* counters) {
  const std::vector<int64_t> ids = file.ReadIds("ids");
  const std::vector<int64_t> removed = file.ReadIds("removed");
  CheckIds(file, table, "ids", ids);
  CheckIds(file, table, "removed", removed);
  CheckDisjoint(file, table, ids, removed);
  int64_t num_entries = 0;
  RowIndex extended = index.Extended(ids, removed, number, &num_entries);
  counters->index_entries += num_entries;
  return extended;
}

// A table without the unknown value's row has nothing to put in the place of an id.
int32_t PolicyOf(const TableRecord& record, const Options& options) {
  const bool has_row = options.out_of_range != RH_OOV_ROW || record.num_rows > kUnknownRow;
  return has_row ? options.out_of_range : static_cast<int32_t>(RH_ERROR);
}

// The row that stands in where the tier fails: the unknown value's where unknown ids get it, else zeros.
std::string DefaultRow(const Table& table, const Options& options,
                       const std::vector<std::shared_ptr<RemoteFile>>& files, RemoteTier* tier) {
  std::string row(table.record.row_bytes(), '\0');
  if (!options.uses_default_row || table.out_of_range != RH_OOV_ROW) return row;
  const int64_t place = table.index->Place(kUnknownRow);
  if (place != kNoPlace) tier->ReadRow(*files[FileOf(place)], RowOf(place), row.data());
  return row;
}

}  // namespace

MappedRows::MappedRows(const TableRecord& table, std::vector<std::shared_ptr<RowFile>> files)
    : memory_(MemoryTable(table.type, table.dim)), files_(std::move(files)), row_bytes_(table.row_bytes()) {
  row_shifts_.push_back(kNoPlace - RowOf(kNoPlace));
  for (const std::shared_ptr<RowFile>& file : files_) row_shifts_.push_back(file->memory().first_row());
}

rh_table MappedRows::Locate(const std::vector<Places>& places, Arena*, SourceReport* report) const {
  TakePages(places, &report->pages);
  static_assert(FileOf(kNoPlace) == -1);
  const int64_t* const shifts = row_shifts_.data() + 1;
  for (const Places& some : places) {
    const bool fits = some.size * row_bytes_ <= kSoonReadBytes;
    for (int64_t i = 0; i < some.size; ++i) {
      some.data[i] = shifts[FileOf(some.data[i])] + RowOf(some.data[i]);
      if (fits) __builtin_prefetch(reinterpret_cast<const void*>((some.data[i] + 1) * row_bytes_));
    }
  }
  return memory_;
}

void MappedRows::TakePages(const std::vector<Places>& places, std::vector<const char*>* pages) const {
  const auto asked = [&](int64_t file) { return files_[file]->memory().asked(); };
  for (size_t file = 0; file < files_.size(); ++file) {
    if (asked(file) == nullptr || !asked(file)->asks()) continue;
    for (const Places& some : places) {
      const size_t before = pages->size();
      for (int64_t i = 0; i < some.size; ++i) {
        const int64_t place = some.data[i];
        if (FileOf(place) == static_cast<int64_t>(file))
          asked(file)->TakeRow(RowOf(place) * row_bytes_, row_bytes_, pages);
      }
      asked(file)->Note(some.size, static_cast<int64_t>(pages->size() - before));
    }
  }
}

std::shared_ptr<const RowIndex> RowIndices::Open(const TableRecord& table,
                                                 const std::vector<std::shared_ptr<RowFile>>& files,
                                                 FileCounters* counters) {
  const int64_t num_segments = static_cast<int64_t>(table.segments.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto known = indices_.begin(); known != indices_.end();) {
    known = known->second.expired() ? indices_.erase(known) : std::next(known);
  }
  // The longest beginning of the table that is open.
  int64_t number = table.num_files();
  std::shared_ptr<const RowIndex> index;
  for (; number >= num_segments; --number) {
    const auto known = indices_.find(table.ChainBefore(number));
    if (known != indices_.end() && (index = known->second.lock()) != nullptr) break;
  }
  if (index == nullptr) {
    std::vector<int64_t> num_rows;
    for (const SegmentRecord& segment : table.segments) num_rows.push_back(segment.num_rows);
    index = std::make_shared<const RowIndex>(num_rows);
    number = num_segments;
  }
  for (; number < table.num_files(); ++number) {
    index = std::make_shared<const RowIndex>(Extended(*index, table, *files[number], number, counters));
  }
  indices_[table.ChainBefore(table.num_files())] = index;
  return index;
}

Table OpenTable(const std::string& store, const TableRecord& record, const Options& options, RowFiles* files,
                RowIndices* indices) {
  std::vector<std::shared_ptr<RowFile>> own;
  for (int64_t number = 0; number < record.num_files(); ++number) {
    own.push_back(files->Open(store, record.file(number)));
    const int64_t delta = number - static_cast<int64_t>(record.segments.size());
    if (delta < 0) {
      own.back()->CheckSegment(record, record.segments[number]);
    } else {
      own.back()->CheckDelta(record, delta);
    }
  }
  Table table = {};
  table.record = record;
  table.index = indices->Open(record, own, files->counters());
  for (const std::shared_ptr<RowFile>& file : own) table.file_numbers.push_back(file->number());
  table.out_of_range = PolicyOf(record, options);
  table.is_direct = own.size() == 1;
  table.direct = MemoryTable(record.type, record.dim);
  if (table.is_direct) {
    table.direct.rows = own[0]->memory().rows();
    table.direct.num_rows = record.num_rows;
    table.direct_pages = own[0]->memory().asked();
    table.direct.out_of_range = table.out_of_range;
    table.direct.oov_row = table.out_of_range == RH_OOV_ROW ? kUnknownRow : 0;
  }
  table.source = std::make_shared<const MappedRows>(record, std::move(own));
  return table;
}

Table OpenRemoteTable(const Manifest& manifest, const TableRecord& record, const Options& options,
                      const std::shared_ptr<RemoteTier>& tier, RowIndices* indices, FileCounters* counters) {
  const int64_t num_segments = static_cast<int64_t>(record.segments.size());
  std::vector<std::shared_ptr<RemoteFile>> files;
  std::vector<std::shared_ptr<RowFile>> descriptions;
  for (int64_t number = 0; number < record.num_files(); ++number) {
    const bool is_segment = number < num_segments;
    const int64_t num_rows =
        is_segment ? record.segments[number].num_rows : record.deltas[number - num_segments].num_rows;
    files.push_back(tier->Open(record.file(number), record.row_bytes(), num_rows));
    descriptions.emplace_back(files.back(), files.back()->description());
    if (is_segment) {
      descriptions.back()->CheckSegment(record, record.segments[number]);
    } else {
      descriptions.back()->CheckDelta(record, number - num_segments);
    }
  }
  Table table = {};
  table.record = record;
  table.index = indices->Open(record, descriptions, counters);
  for (const std::shared_ptr<RemoteFile>& file : files) table.file_numbers.push_back(file->number());
  table.out_of_range = PolicyOf(record, options);
  table.direct = MemoryTable(record.type, record.dim);
  std::string default_row = DefaultRow(table, options, files, tier.get());
  table.remote = std::make_shared<const RemoteRows>(
      record, std::move(files), tier, tier->caches().Of(record.row_bytes(), manifest), std::move(default_row));
  return table;
}

}  // namespace rankhouse::engine
