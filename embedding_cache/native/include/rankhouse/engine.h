// The embedding engine: opens versions (embedding_cache/FORMAT.md) and looks their rows up. The conventions of
// rankhouse/kernels.h hold, and rh_last_error() gives its messages too.
//
// Each file is opened and mapped once, whatever number of versions name it: versions share what they have in common,
// and opening a version whose files are open costs what it has of its own. Any thread may call any function; a lookup
// never waits for an opening or a closing.
#ifndef RANKHOUSE_ENGINE_H_
#define RANKHOUSE_ENGINE_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RH_ENGINE_ABI_VERSION 4

// Beside those of rh_status.
typedef enum rh_engine_status {
  RH_NOT_FOUND = 16,    // no such store, version or table
  RH_CORRUPT = 17,      // a file is missing, truncated, or not what the version's manifest says: the message names it
  RH_TIER_FAILED = 18,  // rows lie in a store that is down or late
  RH_BAD_MANIFEST = 19  // a manifest is malformed, made by a newer release, or contradicts its parent's
} rh_engine_status;

// Returns RH_ENGINE_ABI_VERSION of the built library.
RH_API int rh_engine_abi_version(void);

// One for a process is the idea; several are allowed.
typedef struct rh_engine rh_engine;

// A version that is open. It never changes.
typedef struct rh_engine_version rh_engine_version;

// Creates an engine. options: NULL, or a JSON object; a key that is not below is an error that names the nearest one:
//   "num_threads"   most threads that a call without an executor uses, and that verify files; 0 (default): as many as
//                   there are processors
//   "memory"        "map" (default): rows are read from the mapped files, through the page cache; "pin": they are
//                   copied into memory of the engine's own, in huge pages, when a file is opened
//   "out_of_range"  what becomes of an id that is no row of its table: "error" (default), "zero" (a row of zeros),
//                   "clip" (the nearest row) or "unknown_row" (row 2, the unknown value's)
//   "rows"          where rows are: "local" (default): in the store's files; "redis": where `rankhouse version push`
//                   has brought them. The store then needs manifests and what lies beside them, but no rows
//   "redis"         an object: how Redis is reached, as in rankhouse/redis.h; its deadline_ms is a lookup's
//   "cache_bytes"   memory for rows that came from Redis, for all versions together; 2^30. It is divided among rows of
//                   all sizes; where a version brings a size that none had before, it is divided anew, and caches whose
//                   share changes begin empty
//   "cache_policy"  which rows make way in it: those not used for the longest ("lru", default), or the least ("lfu")
//   "if_tier_fails" what becomes of a lookup whose rows Redis does not give by the deadline: "error" (default), or
//                   "default_row": the unknown value's row where out_of_range is "unknown_row", else zeros, stands in
//                   for what did not arrive, and the answer is marked degraded. It is never cached
//   "device"        the number of a GPU, for rh_engine_lookup_cuda; it keeps rows there. Default: none
//   "device_cache_bytes" memory for them on the GPU, for all versions together; 2^30. Divided as cache_bytes is
//   "device_cache_policy" which of them make way: "lru" (default) or "lfu"
//   "hot_rows"      a folder, in which a file for each model keeps the ids that are looked up most: read here, written
//                   every minute and by rh_engine_destroy. A version that is opened has its hot rows in memory before
//                   rh_engine_open returns. Default: nothing is kept
//   "if_warm_up_fails" what becomes of an opening whose hot rows Redis does not give in time: "open" (default): the
//                   version is opened, and rows that are missing are counted and read when a lookup needs them; or
//                   "error"
RH_API int rh_engine_create(const char* options, rh_engine** engine);
RH_API void rh_engine_destroy(rh_engine* engine);  // NULL is allowed. Open versions stay usable until they are closed

// Opens a version of the store in a folder. name: the version's, or NULL or "latest" for the newest one. A name that
// begins with '.' is a version that is being written: it is opened without holding it against its name. Presence and
// size of each file are compared, what its header says, and where each delta belongs; with verify != 0 also the SHA-256
// of every file that this engine has not verified before. Rows in Redis were verified when they were pushed.
RH_API int rh_engine_open(rh_engine* engine, const char* store, const char* name, int verify,
                          rh_engine_version** version);

// Closes what rh_engine_open gave; NULL is allowed. Calls in flight on it keep what they use; the last one to end frees
// what no other version uses. No call may begin on it afterwards.
RH_API void rh_engine_close(rh_engine_version* version);

// Describes the version as a JSON object, which lives as long as the version is open:
//   "model", "name", "created_at" (ISO 8601), "folder" (the version's), "layers" (paths of the vocabularies' layers,
//   the oldest first; none: transform.safetensors in the folder), "num_dense" (null: no dense part), "embeddings_dim"
//   (E), "tables": [{"name", "num_rows", "dim", "dtype", "rows": "direct" | "resolved"}], "features": [{"name", "table"
//   (its number), "combiner", "dim", "column_begin"}]
RH_API int rh_engine_version_json(const rh_engine_version* version, const char** json);

// Where arrays lie.
typedef enum rh_memory { RH_HOST_MEMORY = 0, RH_DEVICE_MEMORY = 1 } rh_memory;

// Bags of ids for all of a version's features, in their order: bag (f, b) at [f * B + b]. One of offsets, lengths and
// hotness says where bags begin. lengths are fastest where they are all 1, and checked in any case.
typedef struct rh_engine_batch {
  const void* ids;           // [N] of id_type, feature-major
  const int64_t* offsets;    // [F * B + 1] bag i holds ids[offsets[i]] to ids[offsets[i + 1] - 1]; or NULL
  const int32_t* lengths;    // [F * B] the ids of each bag; or NULL
  const int32_t* hotness;    // [F] all bags of feature f hold hotness[f] ids; or NULL
  const float* weights;      // [N] or NULL: all are 1
  const int32_t* combiners;  // [F] an rh_combiner each; or NULL: the version's
  int64_t num_ids;           // N
  int64_t batch_size;        // B
  int32_t id_type;           // an rh_id_type
  int32_t memory;  // an rh_memory: that of ids, offsets, lengths and weights; combiners and hotness lie in the host's.
                   // RH_DEVICE_MEMORY is for rh_engine_lookup_cuda alone
  // When the work began that this lookup is a part of, in nanoseconds of CLOCK_MONOTONIC; 0: now. The deadline of
  // "redis" counts from there, so that lookups can share one: after it, rows come from the cache or not at all.
  int64_t started_ns;
} rh_engine_batch;

typedef struct rh_engine_answer {
  int64_t num_unknown;  // ids that were no rows of their tables, and were treated as "out_of_range" says
  int32_t degraded;     // 1: rows of a tier that failed were replaced by the default row
} rh_engine_answer;

// Looks the batch up: out [F] as in rh_pooled_lookup, so also features side by side in one matrix [B, E], and RH_NONE.
// Removed rows, and those that nothing holds, are zeros. The same batch gives the same bits, whatever the threads, the
// memory and the deltas that rows came by. answer may be NULL.
RH_API int rh_engine_lookup(rh_engine_version* version, const rh_engine_batch* batch, const rh_feature_rows* out,
                            rh_engine_answer* answer, const rh_executor* executor);

// The same into one matrix [B, E] with `stride` >= E floats from one row to the next: feature f begins at its column
// "column_begin" in the JSON above. Not for RH_NONE.
RH_API int rh_engine_lookup_matrix(rh_engine_version* version, const rh_engine_batch* batch, float* out, int64_t stride,
                                   rh_engine_answer* answer, const rh_executor* executor);

// As rh_engine_lookup, on the GPU that the engine was told of: out [F] are device pointers, and stream is a
// cudaStream_t of that GPU. The same bits as on the CPU, also where the batch needs more rows than the GPU's cache
// holds. Ids are resolved on the host: those in device memory are copied there first, which waits for the stream. Rows
// that the GPU's cache lacks are read on the host, from where rh_engine_lookup reads them; the call waits for the
// stream once for each size of rows, to learn which these are, and not for the pooling. What it takes from the host's
// arrays has been read when it returns; arrays in device memory are the call's until the stream has passed it.
// RH_UNSUPPORTED where the engine has no GPU.
RH_API int rh_engine_lookup_cuda(rh_engine_version* version, const rh_engine_batch* batch, const rh_feature_rows* out,
                                 rh_engine_answer* answer, const rh_executor* executor, void* stream);

// Rows of one table by ids [n], not pooled: out [n, D]. table: its number in the JSON above. answer may be NULL.
RH_API int rh_engine_gather(rh_engine_version* version, int32_t table, const int64_t* ids, int64_t n, float* out,
                            rh_engine_answer* answer, const rh_executor* executor);

// Writes the counters of the engine and its open versions as Prometheus' text, followed by a zero byte, if `capacity`
// bytes are enough for it, else the zero byte alone; size: how many are needed. The text may grow from one call to the
// next: call again until size <= capacity. text may be NULL where capacity is 0.
RH_API int rh_engine_metrics(rh_engine* engine, char* text, int64_t capacity, int64_t* size);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_ENGINE_H_
