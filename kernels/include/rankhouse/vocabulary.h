// Unique keys, and vocabularies that grow. Include rankhouse/kernels.h.
//
// A key is any int64 of the user's data; an id is a row of a table.
#ifndef RANKHOUSE_VOCABULARY_H_
#define RANKHOUSE_VOCABULARY_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// The distinct keys of keys [N]: unique [U] increasing, keys[n] == unique[inverse[n]], and counts [U] of each. unique
// (and counts) hold N elements; inverse and counts may be NULL. Bytes: about 32 per key and pass of the sort.
RH_API int rh_unique(const int64_t* keys, int64_t num_keys, int64_t* unique, int64_t* inverse, int64_t* counts,
                     int64_t* num_unique, const rh_executor* executor);

// A map from keys to ids that learns keys as they come: over the whole int64 range, no key is reserved.
typedef struct rh_vocabulary rh_vocabulary;

typedef enum rh_eviction {
  RH_EVICT_NEVER = 0,   // when it is full, new keys stay unknown
  RH_EVICT_OLDEST = 1,  // the key seen last the longest ago goes; ties: the rarer, then the smaller
  RH_EVICT_RAREST = 2   // the key seen the fewest times goes; ties: the older, then the smaller
} rh_eviction;

typedef struct rh_vocabulary_options {
  int64_t first_id;        // ids given out are first_id to first_id + max_keys - 1
  int64_t max_keys;        // most keys with an id at one time; 1 to 2^61
  int64_t unknown_id;      // the id of keys that have none, such as 0 (with first_id 1) or -1
  int64_t min_count;       // a key gets an id once it was seen so often; 0 and 1: at once
  int64_t max_candidates;  // most keys remembered that were seen too rarely; beyond, the oldest are forgotten (ties:
                           // the rarer, then the smaller). 0: as many as max_keys
  int32_t eviction;        // an rh_eviction
} rh_vocabulary_options;

RH_API int rh_vocabulary_create(const rh_vocabulary_options* options, rh_vocabulary** vocabulary);
RH_API void rh_vocabulary_destroy(rh_vocabulary* vocabulary);  // NULL is allowed

// ids [N] of keys [N]: unknown_id where a key has none. Changes nothing: for evaluation and serving. Any number of
// threads may look up at the same time, while none observes or evicts.
RH_API int rh_vocabulary_lookup(const rh_vocabulary* vocabulary, const int64_t* keys, int64_t num_keys, int64_t* ids,
                                const rh_executor* executor);

// A key that went, and the id it had, which may have been given to another key since.
typedef struct rh_evicted {
  int64_t key;
  int64_t id;
} rh_evicted;

// Takes note of the keys of step `step` (>= all before) of training: keys [N] with counts [N] (NULL: 1 each;
// duplicates add up; 0 times is not seen; sums stop at 2^63 - 1). Admits those seen often enough, in the order of their
// values, each with the smallest free id, and where there is none evicts, never a key of this step (of any call with
// it); one that finds no room stays a candidate if min_count is above 1. The result depends on the set of (key, count)
// of each step alone: not on their order, nor on how many ranks gathered them. evicted [N] or NULL, num_evicted: what
// went, in the order in which it went; the rows of their ids start anew. A failure leaves the vocabulary as it was.
RH_API int rh_vocabulary_observe(rh_vocabulary* vocabulary, const int64_t* keys, const int64_t* counts,
                                 int64_t num_keys, int64_t step, rh_evicted* evicted, int64_t* num_evicted);

// Evicts every key whose last step is below min_step, and every one seen fewer than min_count times; candidates too.
// evicted [rh_vocabulary_size] or NULL, in the order of keys; candidates are not reported.
RH_API int rh_vocabulary_evict(rh_vocabulary* vocabulary, int64_t min_step, int64_t min_count, rh_evicted* evicted,
                               int64_t* num_evicted);

// Returns the number of keys with an id / of keys with an id and candidates.
RH_API int64_t rh_vocabulary_size(const rh_vocabulary* vocabulary);
RH_API int64_t rh_vocabulary_num_entries(const rh_vocabulary* vocabulary);

// All entries in the order of their keys; a candidate has unknown_id. Arrays of rh_vocabulary_num_entries elements.
RH_API int rh_vocabulary_export(const rh_vocabulary* vocabulary, int64_t* keys, int64_t* ids, int64_t* counts,
                                int64_t* last_steps);

// Replaces all entries by those that rh_vocabulary_export wrote. Keys must increase, ids be unique and in range. A
// failure leaves the vocabulary as it was.
RH_API int rh_vocabulary_import(rh_vocabulary* vocabulary, const int64_t* keys, const int64_t* ids,
                                const int64_t* counts, const int64_t* last_steps, int64_t num_entries);

// On a GPU.
RH_API int rh_unique_workspace_cuda(int64_t num_keys, int64_t* bytes);
RH_API int rh_unique_cuda(const int64_t* keys, int64_t num_keys, int64_t* unique, int64_t* inverse, int64_t* counts,
                          int64_t* num_unique, void* workspace, int64_t workspace_bytes, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_VOCABULARY_H_
