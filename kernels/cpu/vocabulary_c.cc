// The C functions of vocabularies: they check what the caller gave.
#include "core/status.h"
#include "cpu/vocabulary.h"

using rankhouse::Guard;
using rankhouse::Require;

namespace {

void CheckOptions(const rh_vocabulary_options& options) {
  constexpr int64_t kMost = int64_t{1} << 61;  // so that all entries together can be counted
  Require(options.max_keys >= 1 && options.max_keys <= kMost, "max_keys is ", options.max_keys, ": expected 1 to 2^61");
  int64_t last_id = 0;
  Require(!__builtin_add_overflow(options.first_id, options.max_keys - 1, &last_id), "first_id ", options.first_id,
          " and max_keys ", options.max_keys, " give ids beyond int64");
  Require(options.unknown_id < options.first_id || options.unknown_id > last_id, "unknown_id is ", options.unknown_id,
          ", an id that a key may get: expected one outside ", options.first_id, " to ", last_id);
  Require(options.min_count >= 0, "min_count is ", options.min_count, ": expected >= 0");
  Require(options.max_candidates >= 0 && options.max_candidates <= kMost, "max_candidates is ", options.max_candidates,
          ": expected 0 to 2^61");
  Require(options.eviction >= RH_EVICT_NEVER && options.eviction <= RH_EVICT_RAREST, "eviction is ", options.eviction,
          ": expected an rh_eviction, 0 to 2");
}

void CheckKeys(const rh_vocabulary* vocabulary, const int64_t* keys, int64_t num_keys) {
  Require(vocabulary != nullptr, "vocabulary is NULL");
  Require(num_keys >= 0, "num_keys is ", num_keys, ": expected >= 0");
  Require(num_keys == 0 || keys != nullptr, "keys is NULL, but there are ", num_keys);
}

}  // namespace

int rh_vocabulary_create(const rh_vocabulary_options* options, rh_vocabulary** vocabulary) {
  return Guard([&] {
    Require(options != nullptr && vocabulary != nullptr, "options or vocabulary is NULL");
    CheckOptions(*options);
    *vocabulary = new rh_vocabulary(*options);
  });
}

void rh_vocabulary_destroy(rh_vocabulary* vocabulary) { delete vocabulary; }

int rh_vocabulary_lookup(const rh_vocabulary* vocabulary, const int64_t* keys, int64_t num_keys, int64_t* ids,
                         const rh_executor* executor) {
  return Guard([&] {
    CheckKeys(vocabulary, keys, num_keys);
    Require(num_keys == 0 || ids != nullptr, "ids is NULL, but there are ", num_keys, " keys");
    vocabulary->Lookup(keys, num_keys, ids, executor);
  });
}

int rh_vocabulary_observe(rh_vocabulary* vocabulary, const int64_t* keys, const int64_t* counts, int64_t num_keys,
                          int64_t step, rh_evicted* evicted, int64_t* num_evicted) {
  return Guard([&] {
    CheckKeys(vocabulary, keys, num_keys);
    Require(num_evicted != nullptr, "num_evicted is NULL");
    for (int64_t n = 0; counts != nullptr && n < num_keys; ++n) {
      Require(counts[n] >= 0, "key ", keys[n], " at position ", n, " has count ", counts[n], ": expected >= 0");
    }
    *num_evicted = vocabulary->Observe(keys, counts, num_keys, step, evicted);
  });
}

int rh_vocabulary_evict(rh_vocabulary* vocabulary, int64_t min_step, int64_t min_count, rh_evicted* evicted,
                        int64_t* num_evicted) {
  return Guard([&] {
    Require(vocabulary != nullptr, "vocabulary is NULL");
    Require(num_evicted != nullptr, "num_evicted is NULL");
    *num_evicted = vocabulary->Evict(min_step, min_count, evicted);
  });
}

int64_t rh_vocabulary_size(const rh_vocabulary* vocabulary) { return vocabulary != nullptr ? vocabulary->size() : 0; }

int64_t rh_vocabulary_num_entries(const rh_vocabulary* vocabulary) {
  return vocabulary != nullptr ? vocabulary->num_entries() : 0;
}

int rh_vocabulary_export(const rh_vocabulary* vocabulary, int64_t* keys, int64_t* ids, int64_t* counts,
                         int64_t* last_steps) {
  return Guard([&] {
    Require(vocabulary != nullptr, "vocabulary is NULL");
    Require(vocabulary->num_entries() == 0 ||
                (keys != nullptr && ids != nullptr && counts != nullptr && last_steps != nullptr),
            "keys, ids, counts or last_steps is NULL, but there are ", vocabulary->num_entries(), " entries");
    vocabulary->Export(keys, ids, counts, last_steps);
  });
}

int rh_vocabulary_import(rh_vocabulary* vocabulary, const int64_t* keys, const int64_t* ids, const int64_t* counts,
                         const int64_t* last_steps, int64_t num_entries) {
  return Guard([&] {
    CheckKeys(vocabulary, keys, num_entries);
    Require(num_entries == 0 || (ids != nullptr && counts != nullptr && last_steps != nullptr),
            "ids, counts or last_steps is NULL, but there are ", num_entries, " entries");
    vocabulary->Import(keys, ids, counts, last_steps, num_entries);
  });
}
