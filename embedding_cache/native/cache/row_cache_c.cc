// The C functions of the row cache: they check what the caller gave.
#include <limits>

#include "cache/row_cache.h"
#include "core/status.h"
#include "rankhouse/row_cache.h"

using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::cache::Policy;

struct rh_row_cache {
  rankhouse::cache::RowCache rows;
};

namespace {

void CheckCall(const rh_row_cache* cache, const uint64_t* keys, int64_t n, const void* rows) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Require(cache != nullptr, "cache is NULL");
  Require(n >= 0 && n <= kMost, "n is ", n, ": expected 0 to ", kMost, " keys in a call");
  Require(n == 0 || (keys != nullptr && rows != nullptr), "keys or rows is NULL, but there are ", n, " keys");
}

}  // namespace

int rh_row_cache_create(const rh_row_cache_options* options, rh_row_cache** cache) {
  return Guard([&] {
    Require(options != nullptr && cache != nullptr, "options or cache is NULL");
    *cache = nullptr;
    *cache = new rh_row_cache{{options->capacity_bytes, options->row_bytes, static_cast<Policy>(options->policy)}};
  });
}

void rh_row_cache_destroy(rh_row_cache* cache) { delete cache; }

int rh_row_cache_find(rh_row_cache* cache, const uint64_t* keys, int64_t n, void* rows, int32_t* missing,
                      int64_t* num_missing) {
  return Guard([&] {
    CheckCall(cache, keys, n, rows);
    Require(num_missing != nullptr, "num_missing is NULL");
    Require(n == 0 || missing != nullptr, "missing is NULL, but there are ", n, " keys");
    *num_missing = cache->rows.Find(keys, n, static_cast<std::byte*>(rows), missing);
  });
}

int rh_row_cache_insert(rh_row_cache* cache, const uint64_t* keys, int64_t n, const void* rows) {
  return Guard([&] {
    CheckCall(cache, keys, n, rows);
    cache->rows.Insert(keys, n, static_cast<const std::byte*>(rows));
  });
}

int rh_row_cache_count(const rh_row_cache* cache, rh_row_cache_counters* counters) {
  return Guard([&] {
    Require(cache != nullptr && counters != nullptr, "cache or counters is NULL");
    const rankhouse::cache::CacheStats stats = cache->rows.stats();
    *counters = {stats.hits,
                 stats.misses,
                 stats.inserted,
                 stats.evicted,
                 stats.num_rows,
                 stats.capacity_rows,
                 rankhouse::cache::RowCache::kWays,
                 stats.bytes};
  });
}
