// A cache of rows by 64-bit key, set-associative, in memory of a fixed size. The conventions of rankhouse/kernels.h
// hold.
//
// A key stands for the same bytes for ever (the engine's keys name a row of an immutable file), so rows are never out
// of date, versions that share a file share its rows here, and nothing is invalidated: what nobody asks for any more
// makes way. Any of the 2^64 keys will do; none is reserved.
//
// A key belongs to one set, which holds up to `ways` rows; a new row for a full set takes the place of another of them:
//   RH_CACHE_LRU   the one used the longest ago. Time counts calls: all rows of one find are used at once
//   RH_CACHE_LFU   the one used the fewest times (255 at most), ties: the longest ago. An inserted row has been used
//                  once, a found one once more; all counts of a set are halved before every (8 * ways)th row that makes
//                  way there, so that what was hot can cool
// Further ties: the row that lies first in the set. What is found is copied out: no call holds on to a place, so rows
// may be inserted and make way while others are found.
#ifndef RANKHOUSE_ROW_CACHE_H_
#define RANKHOUSE_ROW_CACHE_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rh_cache_policy { RH_CACHE_LRU = 0, RH_CACHE_LFU = 1 } rh_cache_policy;

typedef struct rh_row_cache_options {
  int64_t
      capacity_bytes;  // most memory for keys, counts and rows together; room for no row is allowed: all are missing
  int64_t row_bytes;   // of every row, 1 to 2^31 - 1
  int32_t policy;      // an rh_cache_policy
} rh_row_cache_options;

// Counts since the cache was created.
typedef struct rh_row_cache_counters {
  int64_t hits;           // keys found
  int64_t misses;         // keys not found
  int64_t inserted;       // rows that were new
  int64_t evicted;        // rows that made way
  int64_t num_rows;       // rows that it has now
  int64_t capacity_rows;  // sets * ways
  int64_t ways;           // most rows of one set
  int64_t bytes;          // memory taken, from the beginning on; <= capacity_bytes
} rh_row_cache_counters;

// In the host's memory. Any number of threads may find and insert at the same time, and each row comes out whole.
typedef struct rh_row_cache rh_row_cache;
RH_API int rh_row_cache_create(const rh_row_cache_options* options, rh_row_cache** cache);
RH_API void rh_row_cache_destroy(rh_row_cache* cache);  // NULL is allowed

// Looks keys [n] up, n < 2^31: rows [n, row_bytes] gets the row of each key that is here; missing [n] gets the
// positions of the others, increasing, and num_missing how many they are. The rows of missing keys are left
// unspecified. Bytes: 128 per key and its row read at random, and the row written.
RH_API int rh_row_cache_find(rh_row_cache* cache, const uint64_t* keys, int64_t n, void* rows, int32_t* missing,
                             int64_t* num_missing);

// Puts rows [n, row_bytes] of keys [n] in, one after the other. The row of a key that is here already is replaced, and
// is used once more.
RH_API int rh_row_cache_insert(rh_row_cache* cache, const uint64_t* keys, int64_t n, const void* rows);

RH_API int rh_row_cache_count(const rh_row_cache* cache, rh_row_cache_counters* counters);

// In the memory of the GPU that is current when it is created, and has to be for every call. Any thread may call with
// any stream: the calls of one cache follow each other on the device, in the order in which they were made, without a
// wait on the host. Results depend on that order alone. n < 2^31 - 256.
typedef struct rh_device_row_cache rh_device_row_cache;
RH_API int rh_row_cache_create_cuda(const rh_row_cache_options* options, rh_device_row_cache** cache);
RH_API void rh_row_cache_destroy_cuda(rh_device_row_cache* cache);  // waits for its calls; NULL is allowed

// As rh_row_cache_find; num_missing is one number in device memory.
// Bytes: 256 per key read at random, its row read and written, and about 15 per key in order.
RH_API int rh_row_cache_find_workspace_cuda(int64_t n, int64_t* bytes);
RH_API int rh_row_cache_find_cuda(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, void* rows,
                                  int32_t* missing, int64_t* num_missing, void* workspace, int64_t workspace_bytes,
                                  void* stream);

// As rh_row_cache_insert, and as deterministic: keys are sorted by set, and those of a set go in one after the other.
RH_API int rh_row_cache_insert_workspace_cuda(int64_t n, int64_t* bytes);
RH_API int rh_row_cache_insert_cuda(rh_device_row_cache* cache, const uint64_t* keys, int64_t n, const void* rows,
                                    void* workspace, int64_t workspace_bytes, void* stream);

// Waits for the calls so far.
RH_API int rh_row_cache_count_cuda(rh_device_row_cache* cache, rh_row_cache_counters* counters, void* stream);

// Reads the rows of keys [n], in host memory, from where they lie to rows [n, row_bytes], in host memory. Returns an
// rh_status; the message of a failure is what rh_last_error() says then. It must not throw.
typedef int (*rh_read_rows)(void* context, const uint64_t* keys, int64_t n, void* rows);

// Gets the rows of keys [n] to the device, wherever they are: finds, reads those that are missing, inserts them.
typedef struct rh_row_fetch {
  const uint64_t* keys;  // [n] each once, or it is read as often as it stands there
  int64_t n;
  void* rows;         // [n, row_bytes]
  rh_read_rows read;  // called on this thread, once, if any is missing
  void* context;      // handed to read
  void* host_memory;  // host [host_bytes], the call's own until the stream has passed it; pinned memory is fastest
  int64_t host_bytes;
  const int32_t* is_complete;  // NULL, or what read sets to 0 where a row only stands in for the right one: nothing
                               // that it read is inserted then
} rh_row_fetch;

// Every row comes out whatever the cache holds and however small it is, so a lookup over `rows` has the same bits every
// time: rh_unique (keys -> unique keys and inverse), this (unique keys -> rows), and rh_pooled_lookup_cuda with `rows`
// as the table and `inverse` as the ids. Waits for the stream to see how many keys are missing. Where read fails, the
// call returns its status and message, and nothing was inserted.
RH_API int rh_row_cache_fetch_workspace_cuda(const rh_device_row_cache* cache, int64_t n, int64_t* bytes,
                                             int64_t* host_bytes);
RH_API int rh_row_cache_fetch_cuda(rh_device_row_cache* cache, const rh_row_fetch* fetch, void* workspace,
                                   int64_t workspace_bytes, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_ROW_CACHE_H_
