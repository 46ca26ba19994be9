// Rows that are hot, read before a version is served.
#ifndef RANKHOUSE_ENGINE_WARM_H_
#define RANKHOUSE_ENGINE_WARM_H_

#include <cstdint>
#include <vector>

#include "cache/hot_table.h"
#include "engine/table.h"

namespace rankhouse::engine {

// What the warm-up of a version has done so far.
struct WarmReport {
  int64_t num_warmed = 0;  // rows
  int64_t num_missed = 0;  // rows that a tier did not give, or was not asked for any more
  int32_t num_failures = 0;
};

// As many rows as are read at a time: a lookup of middling size has so many, so that a tier gives them by its deadline.
constexpr int64_t kWarmedAtOnce = 2048;

// The places of hot ids, the hottest last, so that they stay where a cache has no room for all. Only rows in files that
// are new to the engine count (is_new_file, in the order of the table's files), and ids that are no rows are passed
// over.
std::vector<int64_t> HotPlaces(const Table& table, const std::vector<cache::HotRow>& hot,
                               const std::vector<bool>& is_new_file);

// Has rows at hand as a lookup would need them: those of mapped files in memory, those of other tiers in their caches.
// Adds what it did to the report. A tier that is late or down costs the version some of these rows; after several
// failures in one report nothing more is asked of it, so that opening a version has an end.
void Warm(const Table& table, const std::vector<int64_t>& places, WarmReport* report);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_WARM_H_
