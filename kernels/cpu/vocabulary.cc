#include "cpu/vocabulary.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/unique.h"

using namespace rankhouse;

namespace {

constexpr int64_t kPrefetchKeys = 24;  // probes in flight: enough to cover a memory access

int64_t AddCounts(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

RH_SIMD void LookupRange(const KeyTable& table, const int64_t* keys, int64_t begin, int64_t end, int64_t first_id,
                         int64_t unknown_id, int64_t* ids) {
  for (int64_t n = begin; n < std::min(end, begin + kPrefetchKeys); ++n) table.Prefetch(keys[n]);
  for (int64_t n = begin; n < end; ++n) {
    if (n + kPrefetchKeys < end) table.Prefetch(keys[n + kPrefetchKeys]);
    const int64_t tag = table.FindTag(keys[n]);
    ids[n] = tag > 0 ? first_id + (tag - 1) : unknown_id;
  }
}

}  // namespace

// What one Observe has under way.
struct rh_vocabulary::Step {
  const int64_t* keys;
  const int64_t* counts;  // or nullptr
  int64_t num_keys;
  int64_t step;
  rh_evicted* evicted;
  rh_executor executor;
  Scratch scratch{&executor};

  int64_t* slots = nullptr;       // [num_keys] of the keys with an id, else -1
  int64_t* new_keys = nullptr;    // [num_new] without an id: first as they came, then unique and increasing
  int64_t* new_counts = nullptr;  // [num_new] of them
  int64_t num_new = 0;
  int64_t num_evicted = 0;

  int64_t Count(int64_t n) const { return counts != nullptr ? counts[n] : 1; }
};

rh_vocabulary::rh_vocabulary(const rh_vocabulary_options& options)
    : first_id_(options.first_id),
      max_keys_(options.max_keys),
      unknown_id_(options.unknown_id),
      min_count_(std::max<int64_t>(1, options.min_count)),
      max_candidates_(options.max_candidates == 0 ? options.max_keys : options.max_candidates),
      evicts_(options.eviction != RH_EVICT_NEVER),
      free_tags_({{1, options.max_keys + 1}}),
      key_order_(options.eviction == RH_EVICT_RAREST, /*of_candidates=*/false),
      candidate_order_(/*rarest_first=*/false, /*of_candidates=*/true) {}

void rh_vocabulary::Lookup(const int64_t* keys, int64_t num_keys, int64_t* ids, const rh_executor* executor) const {
  ParallelFor(executor, num_keys, 40,
              [&](int64_t begin, int64_t end) { LookupRange(table_, keys, begin, end, first_id_, unknown_id_, ids); });
}

int64_t rh_vocabulary::Observe(const int64_t* keys, const int64_t* counts, int64_t num_keys, int64_t step_number,
                               rh_evicted* evicted) {
  Require(step_number >= last_step_, "step is ", step_number, ", but step ", last_step_,
          " was before: steps must not go back");
  Step step{keys, counts, num_keys, step_number, evicted, {nullptr, nullptr, /*num_threads=*/1, &scratch_}};
  Prepare(&step);

  // From here on nothing fails.
  last_step_ = step_number;
  for (int64_t n = 0; n < num_keys; ++n) {
    if (step.slots[n] < 0) continue;
    KeyStatistics& statistics = table_.statistics(step.slots[n]);
    statistics = {AddCounts(statistics.count, step.Count(n)), step_number};
  }
  int64_t num_left = 0;
  for (int64_t n = 0; n < step.num_new; ++n) {
    if (n + kPrefetchKeys < step.num_new) table_.Prefetch(step.new_keys[n + kPrefetchKeys]);
    if (Admit(&step, step.new_keys[n], step.new_counts[n])) continue;
    step.new_keys[num_left] = step.new_keys[n];
    step.new_counts[num_left++] = step.new_counts[n];
  }
  // New candidates come last, when the statistics of all others are up to date: who is forgotten depends on them.
  for (int64_t n = 0; n < num_left && min_count_ > 1; ++n) Remember(&step, step.new_keys[n], step.new_counts[n]);
  key_order_.Settle();
  return step.num_evicted;
}

// Fills step->slots, and new_keys and new_counts as they come.
void rh_vocabulary::FindKeys(Step* step) const {
  step->num_new = 0;
  for (int64_t n = 0; n < step->num_keys; ++n) {
    if (n + kPrefetchKeys < step->num_keys) table_.Prefetch(step->keys[n + kPrefetchKeys]);
    step->slots[n] = -1;
    if (step->Count(n) == 0) continue;
    const int64_t slot = table_.Find(step->keys[n]);
    if (slot >= 0 && table_.tag(slot) != kCandidate) {
      step->slots[n] = slot;
      table_.PrefetchStatistics(slot);
    } else {
      step->new_keys[step->num_new] = step->keys[n];
      step->new_counts[step->num_new++] = step->Count(n);
    }
  }
}

// Does all that may fail: finds the keys, and makes room for those that have no id.
void rh_vocabulary::Prepare(Step* step) {
  step->slots = step->scratch.Take<int64_t>(step->num_keys);
  step->new_keys = step->scratch.Take<int64_t>(step->num_keys);
  step->new_counts = step->scratch.Take<int64_t>(step->num_keys);
  FindKeys(step);

  int64_t* unique = step->scratch.Take<int64_t>(step->num_new);
  int64_t* inverse = step->scratch.Take<int64_t>(step->num_new);
  const UniqueOutputs outputs{unique, inverse, nullptr};
  const int64_t num_new = Unique(step->new_keys, step->num_new, outputs, &step->executor, &step->scratch);
  const int64_t most_entries = std::min(table_.size() + num_new, max_keys_ + max_candidates_ + 1);
  if (table_.Reserve(most_entries)) FindKeys(step);
  if (evicts_ && (key_order_.is_built() || size() + num_new > max_keys_)) {
    key_order_.Prepare(table_, size(), num_new);
  }
  if (candidate_order_.is_built() || num_candidates_ + num_new > max_candidates_) {
    candidate_order_.Prepare(table_, num_candidates_, num_new);
  }

  int64_t* sums = step->scratch.Take<int64_t>(num_new);
  std::fill_n(sums, num_new, 0);
  for (int64_t n = 0; n < step->num_new; ++n) sums[inverse[n]] = AddCounts(sums[inverse[n]], step->new_counts[n]);
  step->new_keys = unique;
  step->new_counts = sums;
  step->num_new = num_new;
}

// Gives the tag of the smallest free id, or of a key that has to go. Returns false if there is none.
bool rh_vocabulary::TakeTag(Step* step, int64_t* tag) noexcept {
  if (!free_tags_.empty()) {
    *tag = free_tags_.Take();
    return true;
  }
  const int64_t slot = evicts_ ? key_order_.Pop(table_, step->step) : -1;
  if (slot < 0) return false;
  *tag = table_.tag(slot);
  if (step->evicted != nullptr) step->evicted[step->num_evicted] = {table_.key(slot), IdOf(*tag)};
  ++step->num_evicted;
  table_.Erase(slot);
  return true;
}

// Gives an id to a key that has none, if it was seen often enough. Returns false if nothing is known of the key after.
bool rh_vocabulary::Admit(Step* step, int64_t key, int64_t count) noexcept {
  KeyStatistics statistics{count, step->step};
  const int64_t slot = table_.Find(key);
  if (slot >= 0) {
    statistics.count = AddCounts(table_.statistics(slot).count, count);
    table_.statistics(slot) = statistics;
  }
  int64_t tag = kCandidate;
  if (statistics.count < min_count_ || !TakeTag(step, &tag)) return slot >= 0;
  if (slot >= 0) {
    table_.tag(table_.Find(key)) = tag;  // an eviction may have moved it
    --num_candidates_;
  } else {
    table_.Insert(key, tag, statistics);
  }
  key_order_.Add(key, statistics);
  return true;
}

void rh_vocabulary::Remember(Step* step, int64_t key, int64_t count) noexcept {
  const KeyStatistics statistics{count, step->step};
  table_.Insert(key, kCandidate, statistics);
  ++num_candidates_;
  candidate_order_.Add(key, statistics);
  candidate_order_.Settle();
  if (num_candidates_ <= max_candidates_) return;
  table_.Erase(candidate_order_.Pop(table_, step->step));
  --num_candidates_;
}

int64_t rh_vocabulary::Evict(int64_t min_step, int64_t min_count, rh_evicted* evicted) {
  std::vector<std::pair<int64_t, int64_t>> gone;  // keys and tags
  int64_t num_ids = 0;
  for (int64_t slot = 0; slot < table_.num_slots(); ++slot) {
    if (table_.tag(slot) == kFreeSlot) continue;
    const KeyStatistics& statistics = table_.statistics(slot);
    if (statistics.last_step >= min_step && statistics.count >= min_count) continue;
    gone.emplace_back(table_.key(slot), table_.tag(slot));
    num_ids += table_.tag(slot) != kCandidate;
  }
  std::sort(gone.begin(), gone.end());
  free_tags_.Prepare(num_ids);
  for (const auto& [key, tag] : gone) {
    table_.Erase(table_.Find(key));
    if (tag == kCandidate) {
      --num_candidates_;
      continue;
    }
    free_tags_.GiveBack(tag);
    if (evicted != nullptr) *evicted++ = {key, IdOf(tag)};
  }
  key_order_.Reset();
  candidate_order_.Reset();
  return num_ids;
}

void rh_vocabulary::Export(int64_t* keys, int64_t* ids, int64_t* counts, int64_t* last_steps) const {
  std::vector<std::pair<int64_t, int64_t>> entries;  // keys and slots
  entries.reserve(static_cast<size_t>(table_.size()));
  for (int64_t slot = 0; slot < table_.num_slots(); ++slot) {
    if (table_.tag(slot) != kFreeSlot) entries.emplace_back(table_.key(slot), slot);
  }
  std::sort(entries.begin(), entries.end());
  for (size_t n = 0; n < entries.size(); ++n) {
    const auto& [key, slot] = entries[n];
    keys[n] = key;
    ids[n] = IdOf(table_.tag(slot));
    counts[n] = table_.statistics(slot).count;
    last_steps[n] = table_.statistics(slot).last_step;
  }
}

// The tags that the ids of entries leave free.
FreeIds rh_vocabulary::FreeTagsBeside(const int64_t* ids, int64_t num_entries) const {
  std::vector<int64_t> taken;
  for (int64_t n = 0; n < num_entries; ++n) {
    if (ids[n] != unknown_id_) taken.push_back(ids[n]);
  }
  std::sort(taken.begin(), taken.end());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t next = 1;
  for (size_t n = 0; n < taken.size(); ++n) {
    Require(n == 0 || taken[n] != taken[n - 1], "two entries have id ", taken[n], ": expected each id once");
    const int64_t tag = taken[n] - first_id_ + 1;
    if (next < tag) ranges.emplace_back(next, tag);
    next = tag + 1;
  }
  if (next <= max_keys_) ranges.emplace_back(next, max_keys_ + 1);
  return FreeIds(std::move(ranges));
}

void rh_vocabulary::Import(const int64_t* keys, const int64_t* ids, const int64_t* counts, const int64_t* last_steps,
                           int64_t num_entries) {
  int64_t num_candidates = 0;
  int64_t last_step = std::numeric_limits<int64_t>::min();
  for (int64_t n = 0; n < num_entries; ++n) {
    Require(n == 0 || keys[n - 1] < keys[n], "key ", keys[n], " of entry ", n, " follows ",
            keys[std::max<int64_t>(n, 1) - 1], ": expected keys that increase");
    Require(ids[n] == unknown_id_ || (ids[n] >= first_id_ && ids[n] <= first_id_ + (max_keys_ - 1)), "id ", ids[n],
            " of entry ", n, " is out of range: expected ", first_id_, " to ", first_id_ + (max_keys_ - 1), ", or ",
            unknown_id_, " for a candidate");
    Require(counts[n] >= 1, "count ", counts[n], " of entry ", n, ": expected at least 1");
    num_candidates += ids[n] == unknown_id_;
    last_step = std::max(last_step, last_steps[n]);
  }
  Require(num_candidates <= max_candidates_, num_candidates,
          " entries are candidates: expected at most max_candidates, ", max_candidates_);
  FreeIds free_tags = FreeTagsBeside(ids, num_entries);
  KeyTable table(num_entries);
  for (int64_t n = 0; n < num_entries; ++n) {
    if (n + kPrefetchKeys < num_entries) table.Prefetch(keys[n + kPrefetchKeys]);
    const int64_t tag = ids[n] == unknown_id_ ? kCandidate : ids[n] - first_id_ + 1;
    table.Insert(keys[n], tag, {counts[n], last_steps[n]});
  }

  table_.Swap(table);
  std::swap(free_tags_, free_tags);
  key_order_.Reset();
  candidate_order_.Reset();
  num_candidates_ = num_candidates;
  last_step_ = last_step;
}
