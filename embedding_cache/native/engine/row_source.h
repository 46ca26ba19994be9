// Where the rows of one table of a version come from.
//
// A lookup turns ids into places (RowIndex), then asks the table's source for rows that the kernels can read:
//
//   ids -> RowIndex::Resolve -> places -> RowSource::Locate -> row numbers of an rh_table -> rh_pooled_lookup
//
// MappedRows has all rows in memory, and only translates places. Rows that lie in a tier are gathered for all tables of
// a batch at once (remote_rows.h): those that it needs, each once, into the lookup's memory, with an rh_table over
// them.
#ifndef RANKHOUSE_ENGINE_ROW_SOURCE_H_
#define RANKHOUSE_ENGINE_ROW_SOURCE_H_

#include <cstdint>
#include <vector>

#include "engine/arena.h"
#include "rankhouse/kernels.h"

namespace rankhouse::engine {

// The place of a row: the number of its file among the table's (base first, then deltas, the oldest first) and its row
// in the file. A table with more deltas has the same places as before for all rows that it shares.
constexpr int kRowBits = 40;
constexpr int64_t kNoPlace = -1;  // a row of zeros: removed, or held by nothing
constexpr int64_t PlaceOf(int64_t file, int64_t row) { return file << kRowBits | row; }
constexpr int64_t FileOf(int64_t place) { return place >> kRowBits; }
constexpr int64_t RowOf(int64_t place) { return place & ((int64_t{1} << kRowBits) - 1); }

// The key of a row in caches, by the number of its file among all that the engine has opened: versions that share the
// file share its cached rows.
constexpr int64_t kMostFiles = int64_t{1} << (64 - kRowBits);
constexpr uint64_t KeyOf(int64_t file_number, int64_t place) {
  return static_cast<uint64_t>(file_number) << kRowBits | static_cast<uint64_t>(RowOf(place));
}

// Some of a batch's ids that point into one table: those of one of its features.
struct Places {
  int64_t* data;
  int64_t size;
};

// What a source did for one batch.
struct SourceReport {
  int64_t num_unique = 0;     // places asked for, each once; 0 where nobody counted
  int64_t num_cached = 0;     // ids of places that a cache had
  int64_t num_remote = 0;     // ids of places that a tier gave
  int64_t num_default = 0;    // ids for whose row the default one stood in, as a tier had failed
  int64_t num_on_device = 0;  // ids of places that the GPU's cache had

  // Pages of these rows that are not in memory, as far as is known, and that the caller asks for (asked_pages.h).
  std::vector<const char*> pages = {};
};

// Immutable but for its caches; any thread may call it.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Overwrites every place, but for kNoPlace, with a row number of the table that it returns. That table's rows live in
  // `arena` or in the source; out_of_range is RH_ZERO, so that kNoPlace gives zeros. Throws TierError.
  virtual rh_table Locate(const std::vector<Places>& places, Arena* arena, SourceReport* report) const = 0;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ROW_SOURCE_H_
