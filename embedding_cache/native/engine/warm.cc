#include "engine/warm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "engine/arena.h"
#include "engine/remote_rows.h"
#include "engine/row_source.h"

namespace rankhouse::engine {
namespace {

// As many as a lookup of middling size has, so that a tier gives them by its deadline.
constexpr int64_t kRowsAtOnce = 2048;

// Calls visit(page) for each page that rows lie on. `rows` are numbers of the table's rows.
template <typename Visit>
void ForPages(const rh_table& table, const int64_t* rows, int64_t n, Visit visit) {
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  const int64_t row_bytes = rh_row_bytes(table.type, table.dim);
  const int64_t stride = table.stride != 0 ? table.stride : row_bytes;
  for (int64_t i = 0; i < n; ++i) {
    const intptr_t begin = reinterpret_cast<intptr_t>(table.rows) + rows[i] * stride;
    for (intptr_t page = begin / page_bytes * page_bytes; page < begin + row_bytes; page += page_bytes) {
      visit(reinterpret_cast<char*>(page), page_bytes, std::max(begin, page));
    }
  }
}

// Reads the rows of places, all at once.
void WarmSome(const Table& table, std::vector<int64_t> places) {
  const ThreadArena arena;
  const int64_t n = static_cast<int64_t>(places.size());
  if (table.remote != nullptr) {
    std::vector<RemoteDemand> demands = {{table.remote.get(), 0, {{places.data(), n}}, {}, {}}};
    return LocateRemote(&demands, arena.get(), std::chrono::steady_clock::now());
  }
  std::sort(places.begin(), places.end());  // so that the disk is read in one direction
  SourceReport report;
  const rh_table located = table.source->Locate({{places.data(), n}}, arena.get(), &report);
  // First all pages are asked for, so that the disk has many to read at a time; then each is waited for.
  ForPages(located, places.data(), n, [](char* page, int64_t bytes, intptr_t) { madvise(page, bytes, MADV_WILLNEED); });
  ForPages(located, places.data(), n,
           [](char*, int64_t, intptr_t at) { static_cast<void>(*reinterpret_cast<const volatile char*>(at)); });
}

}  // namespace

int64_t Warm(const Table& table, const std::vector<cache::HotRow>& hot, const std::vector<bool>& is_new_file) {
  std::vector<int64_t> places;
  for (const cache::HotRow& row : hot) {
    if (row.id < 0 || row.id >= table.record.num_rows) continue;  // of another version, or never one
    const int64_t place = table.index->Place(row.id);
    if (place != kNoPlace && is_new_file[FileOf(place)]) places.push_back(place);
  }
  // The hottest come last, so that they stay where a cache has no room for all.
  std::reverse(places.begin(), places.end());
  const int64_t n = static_cast<int64_t>(places.size());
  for (int64_t begin = 0; begin < n; begin += kRowsAtOnce) {
    WarmSome(table, {places.begin() + begin, places.begin() + std::min(n, begin + kRowsAtOnce)});
  }
  return n;
}

}  // namespace rankhouse::engine
