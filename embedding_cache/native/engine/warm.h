// Rows that are hot, read before a version is served.
#ifndef RANKHOUSE_ENGINE_WARM_H_
#define RANKHOUSE_ENGINE_WARM_H_

#include <cstdint>
#include <vector>

#include "cache/hot_table.h"
#include "engine/table.h"

namespace rankhouse::engine {

// Has the rows of hot ids at hand as a lookup would need them: those of mapped files in memory, those of other tiers in
// their caches. Only rows in files that are new to the engine are read (is_new_file, in the order of the table's
// files), and ids that are no rows are passed over. Returns how many rows were read. Throws TierError.
int64_t Warm(const Table& table, const std::vector<cache::HotRow>& hot, const std::vector<bool>& is_new_file);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_WARM_H_
