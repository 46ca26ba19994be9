// Versions in Redis: pushing them there, and reading their rows. Include rankhouse/kernels.h for the conventions; the
// statuses are those of rankhouse/engine.h. embedding_cache/FORMAT.md, "In Redis", has the keys.
#ifndef RANKHOUSE_REDIS_H_
#define RANKHOUSE_REDIS_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// A Redis Cluster, or one plain server, with its connections. Any thread may use it.
typedef struct rh_redis rh_redis;

// Connects to nothing yet. options: a JSON object; a key that is not below is an error that names the nearest one:
//   "url"               redis://[user@]host[:port][,host[:port]...], or rediss:// for TLS: any nodes of the cluster
//   "user"              of the access control list, where the URL has none
//   "password_env"      the variable of the environment that holds the password, or
//   "password_file"     the file that holds it in its first line
//   "ca_file"           PEM: who may have signed the nodes' certificates; absent: those whom the system trusts
//   "certificate_file", "key_file"   PEM: the client's own
//   "server_name"       what the nodes' certificates are made out to; absent: the address of each
//   "deadline_ms"       of a call that brings none; 100
//   "hedge_ms"          what a node is silent about for so long, a replica is asked too; 10; 0: never
//   "breaker_failures"  failures in a row after which a node is left alone; 5
//   "breaker_ms"        ... for so long, until one call tries it again; 1000
//   "connections"       idle ones that are kept for each node; 8
//   "batch"             most commands under way on one connection; 1024
RH_API int rh_redis_create(const char* options, rh_redis** redis);
RH_API void rh_redis_destroy(rh_redis* redis);  // NULL is allowed; no call may be in flight

// Counters since the creation, as a JSON object followed by a zero byte, if `capacity` bytes are enough for it; size:
// how many are needed: "commands", "hedges", "moved", "asked", "failures", "refreshes", "breakers_opened"; and "nodes",
// how many are known now.
RH_API int rh_redis_counters(rh_redis* redis, char* text, int64_t capacity, int64_t* size);

// Called with the bytes of a file that have been done since the last call; not 0: stop.
typedef int (*rh_redis_progress)(void* context, int64_t num_bytes);

typedef struct rh_redis_push {
  int64_t expires_at_ms;  // when keys expire, in milliseconds since 1970; 0: never. What stays longer already, stays
  int64_t patience_ms;    // how long a step of some MiB may take; 0: 30000
  rh_redis_progress progress;  // NULL is allowed
  void* context;
} rh_redis_push;

// A file of a version, and where its rows are.
typedef struct rh_redis_layout {
  const char* sha256;  // of the file: 64 lower-case hexadecimal digits
  int64_t bytes;       // of the file
  int64_t rows_begin;  // where row 0 begins
  int64_t row_bytes;
  int64_t num_rows;
} rh_redis_layout;

// Sends what Redis lacks of a file, reads all of it back and compares it; num_sent: the bytes sent. The caller has
// verified the file's checksum.
RH_API int rh_redis_push_file(rh_redis* redis, const char* path, const rh_redis_layout* layout,
                              const rh_redis_push* push, int64_t* num_sent);

// Makes the version exist, when all its files were pushed: waits for replicas, then writes `document` under its key.
RH_API int rh_redis_push_version(rh_redis* redis, const char* name, const char* document, const rh_redis_push* push);

// A pushed file. Any thread may read it.
typedef struct rh_redis_file rh_redis_file;

// deadline_ms here and below: 0 is the client's. RH_TIER_FAILED if it is not there. `redis` must outlive it.
RH_API int rh_redis_file_open(rh_redis* redis, const char* sha256, int64_t deadline_ms, rh_redis_file** file);
RH_API void rh_redis_file_close(rh_redis_file* file);  // NULL is allowed

// Reads rows [n] into out [n * row_bytes]; sorted rows are fastest. RH_TIER_FAILED where one is not there or late.
RH_API int rh_redis_file_read(rh_redis_file* file, const int64_t* rows, int64_t n, void* out, int64_t deadline_ms);

// Reads the file without its rows: out [bytes - num_rows * row_bytes].
RH_API int rh_redis_file_around(rh_redis_file* file, void* out, int64_t capacity, int64_t deadline_ms);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_REDIS_H_
