// Unique keys and vocabularies.
#include <algorithm>
#include <map>
#include <set>

#include "support.h"

namespace fuzz {
namespace {

int64_t RandomKey(Random* random) {
  if (random->Chance(10)) return random->OneOf<int64_t>({0, -1, 1, INT64_MIN, INT64_MAX, INT64_MIN + 1});
  return random->Chance(80) ? random->Between(-20, 60) : random->Between(INT64_MIN, INT64_MAX);
}

Guarded<int64_t> RandomKeys(Random* random, int64_t most) {
  Guarded<int64_t> keys(random, random->Between(0, most));
  for (int64_t& key : keys) key = RandomKey(random);
  return keys;
}

struct Entries {
  Guarded<int64_t> keys, ids, counts, steps;
  explicit Entries(const rh_vocabulary* vocabulary)
      : keys(rh_vocabulary_num_entries(vocabulary)), ids(keys.size()), counts(keys.size()), steps(keys.size()) {
    CHECK(rh_vocabulary_export(vocabulary, keys.OrNull(), ids.OrNull(), counts.OrNull(), steps.OrNull()) == RH_OK);
    ids.Record();
  }
};

void CheckEntries(const rh_vocabulary_options& options, const rh_vocabulary* vocabulary, Random* random) {
  const Entries entries(vocabulary);
  std::set<int64_t> ids;
  Guarded<int64_t> looked_up(random, entries.keys.size());
  const RandomExecutor executor(random);
  CHECK(rh_vocabulary_lookup(vocabulary, entries.keys.OrNull(), entries.keys.size(), looked_up.OrNull(),
                             executor.get()) == RH_OK);
  for (int64_t i = 0; i < entries.keys.size(); ++i) {
    CHECK(i == 0 || entries.keys[i - 1] < entries.keys[i]);
    CHECK(looked_up[i] == entries.ids[i]);
    if (entries.ids[i] == options.unknown_id) continue;
    CHECK(options.first_id <= entries.ids[i] && entries.ids[i] < options.first_id + options.max_keys);
    CHECK(ids.insert(entries.ids[i]).second);
  }
  CHECK(static_cast<int64_t>(ids.size()) == rh_vocabulary_size(vocabulary));
  CHECK(rh_vocabulary_size(vocabulary) <= options.max_keys);

  rh_vocabulary* copy = nullptr;
  CHECK(rh_vocabulary_create(&options, &copy) == RH_OK);
  CHECK(rh_vocabulary_import(copy, entries.keys.OrNull(), entries.ids.OrNull(), entries.counts.OrNull(),
                             entries.steps.OrNull(), entries.keys.size()) == RH_OK);
  const Entries again(copy);
  CHECK(again.keys == entries.keys && again.ids == entries.ids && again.counts == entries.counts &&
        again.steps == entries.steps);
  if (entries.keys.size() > 1) {
    std::swap(entries.keys[0], entries.keys[1]);
    CHECK(rh_vocabulary_import(copy, entries.keys.data(), entries.ids.data(), entries.counts.data(),
                               entries.steps.data(), entries.keys.size()) == RH_INVALID_ARGUMENT);
    const Entries unchanged(copy);
    CHECK(unchanged.keys == again.keys && unchanged.ids == again.ids);
  }
  rh_vocabulary_destroy(copy);
}

}  // namespace

void FuzzUnique(Random* random) {
  const Guarded<int64_t> keys = RandomKeys(random, random->Chance(5) ? 30'000 : 200);
  const int64_t num_keys = keys.size();
  Guarded<int64_t> unique(random, num_keys), inverse(random, num_keys), counts(random, num_keys);
  const bool with_inverse = random->Chance(70), with_counts = random->Chance(70);
  int64_t num_unique = -1;
  const RandomExecutor executor(random);
  CHECK(rh_unique(keys.OrNull(), num_keys, unique.OrNull(), with_inverse ? inverse.OrNull() : nullptr,
                  with_counts ? counts.OrNull() : nullptr, &num_unique, executor.get()) == RH_OK);
  std::map<int64_t, int64_t> expected;
  for (const int64_t key : keys) ++expected[key];
  unique.Record();
  CHECK(num_unique == static_cast<int64_t>(expected.size()));
  int64_t u = 0;
  for (const auto& [key, count] : expected) {
    CHECK(unique[u] == key && (!with_counts || counts[u] == count));
    ++u;
  }
  for (int64_t n = 0; with_inverse && n < num_keys; ++n) CHECK(unique[inverse[n]] == keys[n]);
  CHECK(rh_unique(keys.data(), -1, unique.data(), nullptr, nullptr, &num_unique, executor.get()) ==
        RH_INVALID_ARGUMENT);
  CHECK(rh_unique(nullptr, 1, unique.data(), nullptr, nullptr, &num_unique, executor.get()) == RH_INVALID_ARGUMENT);
}

void FuzzVocabulary(Random* random) {
  rh_vocabulary_options options = {};
  options.first_id = random->OneOf<int64_t>({0, 1, 100});
  options.max_keys = random->Between(1, 50);
  options.unknown_id = random->OneOf<int64_t>({-1, options.first_id - 1});
  options.min_count = random->Between(0, 4);
  options.max_candidates = random->Between(0, 20);
  options.eviction = static_cast<int32_t>(random->Between(RH_EVICT_NEVER, RH_EVICT_RAREST));
  rh_vocabulary* vocabulary = nullptr;
  CHECK(rh_vocabulary_create(&options, &vocabulary) == RH_OK);
  int64_t step = 0;
  for (int64_t i = random->Between(1, 6); i-- > 0;) {
    step += random->Between(0, 3);
    const Guarded<int64_t> keys = RandomKeys(random, 120);
    Guarded<int64_t> counts(random, keys.size());
    for (int64_t& count : counts) count = random->Between(1, 5);
    Guarded<rh_evicted> evicted(random, keys.size());
    int64_t num_evicted = -1;
    const int64_t before = rh_vocabulary_size(vocabulary);
    CHECK(rh_vocabulary_observe(vocabulary, keys.OrNull(), random->Chance(50) ? counts.OrNull() : nullptr, keys.size(),
                                step, evicted.OrNull(), &num_evicted) == RH_OK);
    CHECK(0 <= num_evicted && num_evicted <= keys.size());
    CHECK(rh_vocabulary_size(vocabulary) >= before - num_evicted);
    for (int64_t e = 0; e < num_evicted; ++e) {
      CHECK(std::find(keys.begin(), keys.end(), evicted[e].key) == keys.end());
    }
    CHECK(rh_vocabulary_observe(vocabulary, nullptr, nullptr, 1, step, nullptr, nullptr) == RH_INVALID_ARGUMENT);
    CheckEntries(options, vocabulary, random);
  }
  const int64_t size = rh_vocabulary_size(vocabulary);
  Guarded<rh_evicted> evicted(random, size);
  int64_t num_evicted = -1;
  CHECK(rh_vocabulary_evict(vocabulary, random->Between(0, step + 1), random->Between(0, 9), evicted.OrNull(),
                            &num_evicted) == RH_OK);
  CHECK(rh_vocabulary_size(vocabulary) == size - num_evicted);
  CheckEntries(options, vocabulary, random);
  rh_vocabulary_destroy(vocabulary);

  rh_vocabulary_options bad = options;
  if (random->Chance(50))
    bad.max_keys = random->OneOf<int64_t>({0, -1, INT64_MIN});
  else
    bad.eviction = random->OneOf<int32_t>({-1, 3});
  CHECK(rh_vocabulary_create(&bad, &vocabulary) == RH_INVALID_ARGUMENT);
}

}  // namespace fuzz
