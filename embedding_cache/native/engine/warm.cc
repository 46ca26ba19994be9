#include "engine/warm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/arena.h"
#include "engine/remote_rows.h"
#include "engine/row_source.h"

namespace rankhouse::engine {
namespace {

constexpr int32_t kMostFailures = 8;

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

// Reads the rows of places from a tier into its cache. Returns how many did not come.
int64_t WarmRemote(const RemoteRows& rows, std::vector<int64_t> places) {
  const ThreadArena arena;
  const int64_t n = static_cast<int64_t>(places.size());
  std::vector<RemoteDemand> demands = {{&rows, 0, {{places.data(), n}}, {}, {}}};
  try {
    LocateRemote(&demands, arena.get(), std::chrono::steady_clock::now());
  } catch (const TierError&) {
    return n;  // some may have come; they are in the cache
  }
  return demands[0].report.num_default;
}

// Reads the rows of places, all at once.
void WarmMapped(const Table& table, std::vector<int64_t> places) {
  const ThreadArena arena;
  const int64_t n = static_cast<int64_t>(places.size());
  std::sort(places.begin(), places.end());  // so that the disk is read in one direction
  SourceReport report;
  const rh_table located = table.source->Locate({{places.data(), n}}, arena.get(), &report);
  // First all pages are asked for, so that the disk has many to read at a time; then each is waited for.
  ForPages(located, places.data(), n, [](char* page, int64_t bytes, intptr_t) { madvise(page, bytes, MADV_WILLNEED); });
  ForPages(located, places.data(), n,
           [](char*, int64_t, intptr_t at) { static_cast<void>(*reinterpret_cast<const volatile char*>(at)); });
}

}  // namespace

std::vector<int64_t> HotPlaces(const Table& table, const std::vector<cache::HotRow>& hot,
                               const std::vector<bool>& is_new_file) {
  std::vector<int64_t> places;
  for (const cache::HotRow& row : hot) {
    if (row.id < 0 || row.id >= table.record.num_rows) continue;  // of another version, or never one
    const int64_t place = table.index->Place(row.id);
    if (place != kNoPlace && is_new_file[FileOf(place)]) places.push_back(place);
  }
  std::reverse(places.begin(), places.end());
  return places;
}

void Warm(const Table& table, const std::vector<int64_t>& places, WarmReport* report) {
  const int64_t n = static_cast<int64_t>(places.size());
  for (int64_t begin = 0; begin < n; begin += kWarmedAtOnce) {
    std::vector<int64_t> some(places.begin() + begin, places.begin() + std::min(n, begin + kWarmedAtOnce));
    const int64_t size = static_cast<int64_t>(some.size());
    int64_t num_missed = 0;
    if (table.remote == nullptr) {
      WarmMapped(table, std::move(some));
    } else {
      num_missed = report->num_failures < kMostFailures ? WarmRemote(*table.remote, std::move(some)) : size;
    }
    report->num_warmed += size - num_missed;
    report->num_missed += num_missed;
    report->num_failures += num_missed > 0;
  }
}

}  // namespace rankhouse::engine
