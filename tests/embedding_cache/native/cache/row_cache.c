/* The row cache from C. */
#include "rankhouse/row_cache.h"

#include "tests/kernels/expect.h"

static int finds_what_was_inserted(void) {
  rh_row_cache* cache = NULL;
  EXPECT(rh_row_cache_create(&(rh_row_cache_options){10000, 3, RH_CACHE_LFU}, &cache) == RH_OK);
  const uint64_t keys[] = {UINT64_MAX, 0, 7};
  const char rows[] = "abcdefghi";
  char found[9] = {0};
  int32_t missing[3];
  int64_t num_missing = -1;
  EXPECT(rh_row_cache_insert(cache, keys, 2, rows) == RH_OK);
  EXPECT(rh_row_cache_find(cache, keys, 3, found, missing, &num_missing) == RH_OK);
  EXPECT(num_missing == 1 && missing[0] == 2 && memcmp(found, rows, 6) == 0);
  EXPECT(rh_row_cache_find(cache, NULL, 0, NULL, NULL, &num_missing) == RH_OK && num_missing == 0);
  rh_row_cache_counters counters;
  EXPECT(rh_row_cache_count(cache, &counters) == RH_OK);
  EXPECT(counters.hits == 2 && counters.misses == 1 && counters.num_rows == 2 && counters.bytes <= 10000);
  rh_row_cache_destroy(cache);
  return 0;
}

static int errors_name_the_argument(void) {
  rh_row_cache* cache = NULL;
  EXPECT_INVALID(rh_row_cache_create(NULL, &cache), "options or cache is NULL");
  EXPECT_INVALID(rh_row_cache_create(&(rh_row_cache_options){-1, 8, RH_CACHE_LRU}, &cache), "capacity_bytes is -1");
  EXPECT_INVALID(rh_row_cache_insert(NULL, NULL, 0, NULL), "cache is NULL");
  EXPECT_INVALID(rh_row_cache_count(NULL, NULL), "cache or counters is NULL");
  rh_row_cache_destroy(NULL);
  return 0;
}

int main(void) { return finds_what_was_inserted() + errors_name_the_argument(); }
