/* rankhouse/vocabulary.h from C: keys over the whole int64 range, each eviction by hand, and what is refused. */
#include "expect.h"

static int test_unique(void) {
  const int64_t keys[] = {7, INT64_MIN, 7, INT64_MAX, INT64_MIN, 7};
  int64_t unique[6] = {0}, inverse[6], counts[6] = {0}, num_unique = -1;
  EXPECT(rh_unique(keys, 6, unique, inverse, counts, &num_unique, NULL) == RH_OK);
  EXPECT(num_unique == 3 && unique[0] == INT64_MIN && unique[1] == 7 && unique[2] == INT64_MAX);
  EXPECT(counts[0] == 2 && counts[1] == 3 && counts[2] == 1);
  EXPECT_ELEMENTS(int64_t, inverse, 1, 0, 1, 2, 0, 1);
  EXPECT(rh_unique(keys + 1, 1, unique, NULL, NULL, &num_unique, NULL) == RH_OK);
  EXPECT(num_unique == 1 && unique[0] == INT64_MIN);
  EXPECT(rh_unique(NULL, 0, NULL, NULL, NULL, &num_unique, NULL) == RH_OK && num_unique == 0);

  EXPECT_INVALID(rh_unique(keys, -1, unique, NULL, NULL, &num_unique, NULL), "num_keys is -1");
  EXPECT_INVALID(rh_unique(NULL, 1, unique, NULL, NULL, &num_unique, NULL), "keys or unique is NULL");
  EXPECT_INVALID(rh_unique(keys, 1, NULL, NULL, NULL, &num_unique, NULL), "keys or unique is NULL");
  EXPECT_INVALID(rh_unique(keys, 1, unique, NULL, NULL, NULL, NULL), "num_unique is NULL");
  return 0;
}

/* Keys get the ids 1 to 3 once they were seen twice. */
static const rh_vocabulary_options kOptions = {
    .first_id = 1, .max_keys = 3, .min_count = 2, .eviction = RH_EVICT_OLDEST};

static int check_life(rh_vocabulary* vocabulary) {
  const int64_t asked[] = {INT64_MIN, INT64_MAX, 5, 6};
  int64_t ids[4], num_evicted = -1;
  rh_evicted evicted[5];
  EXPECT(rh_vocabulary_lookup(vocabulary, asked, 4, ids, NULL) == RH_OK);
  EXPECT_ELEMENTS(int64_t, ids, 0, 0, 0, 0);

  const int64_t first[] = {INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN, 5};
  EXPECT(rh_vocabulary_observe(vocabulary, first, NULL, 5, 1, evicted, &num_evicted) == RH_OK && num_evicted == 0);
  EXPECT(rh_vocabulary_lookup(vocabulary, asked, 4, ids, NULL) == RH_OK);
  EXPECT_ELEMENTS(int64_t, ids, 1, 2, 0, 0);
  EXPECT(rh_vocabulary_size(vocabulary) == 2 && rh_vocabulary_num_entries(vocabulary) == 3);

  EXPECT(rh_vocabulary_observe(vocabulary, asked + 2, (int64_t[]){1, 0}, 2, 2, NULL, &num_evicted) == RH_OK);
  EXPECT(num_evicted == 0 && rh_vocabulary_size(vocabulary) == 3 && rh_vocabulary_num_entries(vocabulary) == 3);

  /* It is full: of the two oldest, as often seen, the smaller goes. */
  EXPECT(rh_vocabulary_observe(vocabulary, asked + 3, (int64_t[]){2}, 1, 3, evicted, &num_evicted) == RH_OK);
  EXPECT(num_evicted == 1 && evicted[0].key == INT64_MIN && evicted[0].id == 1);
  EXPECT(rh_vocabulary_lookup(vocabulary, asked, 4, ids, NULL) == RH_OK);
  EXPECT_ELEMENTS(int64_t, ids, 0, 2, 3, 1);
  return 0;
}

/* Each leaves the vocabulary as it was. */
static int check_refusals(rh_vocabulary* vocabulary) {
  int64_t keys[3], ids[3], counts[3], last_steps[3], num_evicted = -1;
  const int64_t one[] = {1};
  EXPECT_INVALID(rh_vocabulary_observe(vocabulary, one, NULL, 1, 2, NULL, &num_evicted), "step is 2, but step 3 was");
  EXPECT_INVALID(rh_vocabulary_observe(vocabulary, (int64_t[]){1, 2}, (int64_t[]){9, -1}, 2, 3, NULL, &num_evicted),
                 "key 2 at position 1 has count -1");
  EXPECT_INVALID(rh_vocabulary_observe(vocabulary, one, NULL, -1, 3, NULL, &num_evicted), "num_keys is -1");
  EXPECT_INVALID(rh_vocabulary_observe(vocabulary, NULL, NULL, 1, 3, NULL, &num_evicted), "keys is NULL");
  EXPECT_INVALID(rh_vocabulary_observe(vocabulary, one, NULL, 1, 3, NULL, NULL), "num_evicted is NULL");
  EXPECT_INVALID(rh_vocabulary_observe(NULL, one, NULL, 1, 3, NULL, &num_evicted), "vocabulary is NULL");
  EXPECT_INVALID(rh_vocabulary_lookup(vocabulary, NULL, 1, ids, NULL), "keys is NULL");
  EXPECT_INVALID(rh_vocabulary_lookup(vocabulary, one, 1, NULL, NULL), "ids is NULL");
  EXPECT_INVALID(rh_vocabulary_lookup(vocabulary, one, -1, ids, NULL), "num_keys is -1");
  EXPECT_INVALID(rh_vocabulary_lookup(NULL, one, 1, ids, NULL), "vocabulary is NULL");
  EXPECT_INVALID(rh_vocabulary_evict(vocabulary, 0, 0, NULL, NULL), "num_evicted is NULL");
  EXPECT_INVALID(rh_vocabulary_evict(NULL, 0, 0, NULL, &num_evicted), "vocabulary is NULL");
  EXPECT_INVALID(rh_vocabulary_export(vocabulary, keys, ids, NULL, last_steps), "but there are 3 entries");
  EXPECT_INVALID(rh_vocabulary_export(NULL, keys, ids, counts, last_steps), "vocabulary is NULL");

#define EXPECT_IMPORT_REFUSED(text, key_0, key_1, id_0, id_1, count)                                  \
  EXPECT_INVALID(rh_vocabulary_import(vocabulary, (int64_t[]){key_0, key_1}, (int64_t[]){id_0, id_1}, \
                                      (int64_t[]){1, count}, (int64_t[]){0, 0}, 2),                   \
                 text)
  EXPECT_IMPORT_REFUSED("key 4 of entry 1 follows 4: expected keys that increase", 4, 4, 1, 2, 1);
  EXPECT_IMPORT_REFUSED("key -9223372036854775808 of entry 1 follows", INT64_MAX, INT64_MIN, 1, 2, 1);
  EXPECT_IMPORT_REFUSED("two entries have id 1", 4, 5, 1, 1, 1);
  EXPECT_IMPORT_REFUSED("id 4 of entry 1 is out of range: expected 1 to 3, or 0 for a candidate", 4, 5, 1, 4, 1);
  EXPECT_IMPORT_REFUSED("id -9223372036854775808 of entry 1 is out of range", 4, 5, 1, INT64_MIN, 1);
  EXPECT_IMPORT_REFUSED("count 0 of entry 1", 4, 5, 1, 2, 0);
  EXPECT_INVALID(rh_vocabulary_import(vocabulary, NULL, one, one, one, 1), "keys is NULL");
  EXPECT_INVALID(rh_vocabulary_import(vocabulary, one, one, NULL, one, 1), "ids, counts or last_steps is NULL");
  EXPECT_INVALID(rh_vocabulary_import(vocabulary, one, one, one, one, -1), "num_keys is -1");
  EXPECT_INVALID(rh_vocabulary_import(NULL, one, one, one, one, 1), "vocabulary is NULL");

  EXPECT(rh_vocabulary_export(vocabulary, keys, ids, counts, last_steps) == RH_OK);
  EXPECT_ELEMENTS(int64_t, keys, 5, 6, INT64_MAX);
  EXPECT_ELEMENTS(int64_t, ids, 3, 1, 2);
  EXPECT_ELEMENTS(int64_t, counts, 2, 2, 2);
  EXPECT_ELEMENTS(int64_t, last_steps, 2, 3, 1);
  return 0;
}

static int check_copy(const rh_vocabulary* vocabulary, rh_vocabulary* copy) {
  int64_t keys[3], ids[3], counts[3], last_steps[3], num_evicted = -1;
  rh_evicted evicted[3];
  EXPECT(rh_vocabulary_export(vocabulary, keys, ids, counts, last_steps) == RH_OK);
  EXPECT(rh_vocabulary_import(copy, keys, ids, counts, last_steps, 3) == RH_OK);
  EXPECT(rh_vocabulary_lookup(copy, keys, 3, ids, NULL) == RH_OK);
  EXPECT_ELEMENTS(int64_t, ids, 3, 1, 2);
  EXPECT(rh_vocabulary_evict(copy, 2, 0, evicted, &num_evicted) == RH_OK);
  EXPECT(num_evicted == 1 && evicted[0].key == INT64_MAX && evicted[0].id == 2);
  EXPECT(rh_vocabulary_evict(copy, INT64_MIN, 3, evicted, &num_evicted) == RH_OK);
  EXPECT(num_evicted == 2 && evicted[0].key == 5 && evicted[0].id == 3 && evicted[1].key == 6 && evicted[1].id == 1);
  EXPECT(rh_vocabulary_size(copy) == 0 && rh_vocabulary_size(vocabulary) == 3);
  EXPECT(rh_vocabulary_import(copy, NULL, NULL, NULL, NULL, 0) == RH_OK && rh_vocabulary_num_entries(copy) == 0);
  EXPECT(rh_vocabulary_export(copy, NULL, NULL, NULL, NULL) == RH_OK);
  EXPECT(rh_vocabulary_observe(copy, NULL, NULL, 0, 4, NULL, &num_evicted) == RH_OK && num_evicted == 0);
  EXPECT(rh_vocabulary_lookup(copy, NULL, 0, NULL, NULL) == RH_OK);
  return 0;
}

static int test_oldest_goes(void) {
  rh_vocabulary *vocabulary = NULL, *copy = NULL;
  EXPECT(rh_vocabulary_create(&kOptions, &vocabulary) == RH_OK);
  EXPECT(rh_vocabulary_create(&kOptions, &copy) == RH_OK);
  EXPECT(check_life(vocabulary) == 0);
  EXPECT(check_refusals(vocabulary) == 0);
  EXPECT(check_copy(vocabulary, copy) == 0);
  rh_vocabulary_destroy(vocabulary);
  rh_vocabulary_destroy(copy);
  rh_vocabulary_destroy(NULL);
  EXPECT(rh_vocabulary_size(NULL) == 0 && rh_vocabulary_num_entries(NULL) == 0);
  return 0;
}

/* Two ids at the end of int64, for keys at both ends of it, in steps at both ends of it. */
static int test_rarest_or_none_goes(int32_t eviction) {
  const rh_vocabulary_options options = {
      .first_id = INT64_MAX - 1, .max_keys = 2, .unknown_id = -1, .eviction = eviction};
  const int64_t keys[] = {INT64_MIN, INT64_MAX, 0};
  int64_t ids[3], counts[2], exported[2], last_steps[2], num_evicted = -1;
  rh_vocabulary* vocabulary = NULL;
  EXPECT(rh_vocabulary_create(&options, &vocabulary) == RH_OK);
  EXPECT(rh_vocabulary_observe(vocabulary, keys, (int64_t[]){INT64_MAX, 1}, 2, INT64_MIN, NULL, &num_evicted) == RH_OK);
  EXPECT(rh_vocabulary_observe(vocabulary, keys, NULL, 1, INT64_MAX - 1, NULL, &num_evicted) == RH_OK);
  EXPECT(rh_vocabulary_observe(vocabulary, keys + 2, NULL, 1, INT64_MAX, NULL, &num_evicted) == RH_OK);
  EXPECT(num_evicted == (eviction == RH_EVICT_RAREST));
  EXPECT(rh_vocabulary_lookup(vocabulary, keys, 3, ids, NULL) == RH_OK);
  EXPECT(ids[0] == INT64_MAX - 1);
  EXPECT(ids[1] == (eviction == RH_EVICT_RAREST ? -1 : INT64_MAX));
  EXPECT(ids[2] == (eviction == RH_EVICT_RAREST ? INT64_MAX : -1));
  EXPECT(rh_vocabulary_num_entries(vocabulary) == 2);
  EXPECT(rh_vocabulary_export(vocabulary, exported, ids, counts, last_steps) == RH_OK);
  EXPECT(exported[0] == INT64_MIN && counts[0] == INT64_MAX && last_steps[0] == INT64_MAX - 1);
  rh_vocabulary_destroy(vocabulary);
  return 0;
}

#define EXPECT_REFUSED(change, text)                                   \
  do {                                                                 \
    rh_vocabulary_options options = kOptions;                          \
    change;                                                            \
    EXPECT_INVALID(rh_vocabulary_create(&options, &vocabulary), text); \
  } while (0)

static int test_options(void) {
  rh_vocabulary* vocabulary = NULL;
  EXPECT_REFUSED(options.max_keys = 0, "max_keys is 0: expected 1 to 2^61");
  EXPECT_REFUSED(options.max_keys = INT64_MAX, "max_keys is 9223372036854775807");
  EXPECT_REFUSED(options.first_id = INT64_MAX, "first_id 9223372036854775807 and max_keys 3 give ids beyond int64");
  EXPECT_REFUSED(options.unknown_id = 3, "unknown_id is 3, an id that a key may get: expected one outside 1 to 3");
  EXPECT_REFUSED(options.min_count = -1, "min_count is -1");
  EXPECT_REFUSED(options.max_candidates = INT64_MIN, "max_candidates is -9223372036854775808");
  EXPECT_REFUSED(options.eviction = 3, "eviction is 3");
  EXPECT_INVALID(rh_vocabulary_create(NULL, &vocabulary), "options or vocabulary is NULL");
  EXPECT_INVALID(rh_vocabulary_create(&kOptions, NULL), "options or vocabulary is NULL");
  return 0;
}

int main(void) {
  return test_unique() || test_oldest_goes() || test_rarest_or_none_goes(RH_EVICT_RAREST) ||
         test_rarest_or_none_goes(RH_EVICT_NEVER) || test_options();
}
