#include "cache/hot_table.h"

#include <algorithm>
#include <limits>

#include "cache/replacement.h"
#include "core/status.h"

namespace rankhouse::cache {
namespace {

// The next of a sequence of random numbers (SplitMix64).
uint64_t NextRandom(uint64_t* state) {
  *state += 0x9e3779b97f4a7c15u;
  return HashKey(static_cast<int64_t>(*state));
}

// A number below `bound`, each as likely as the others.
uint64_t RandomBelow(uint64_t bound, uint64_t* state) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(NextRandom(state)) * bound >> 64);
}

// Where a sample of this thread's begins, below `bound`. Each thread has a sequence of its own.
int64_t RandomStart(int64_t bound) {
  thread_local uint64_t state = HashKey(reinterpret_cast<intptr_t>(&state));
  return static_cast<int64_t>(RandomBelow(static_cast<uint64_t>(bound), &state));
}

bool Hotter(const HotRow& a, const HotRow& b) { return a.count != b.count ? a.count > b.count : a.id < b.id; }

}  // namespace

HotTable::HotTable(const HotRowOptions& options) : options_(options) {
  constexpr int64_t kMost = int64_t{1} << 32;
  Require(options.max_ids >= 1 && options.max_ids <= kMost, "max_ids is ", options.max_ids, ": expected 1 to 2^32");
  Require(options.sample_every >= 1, "sample_every is ", options.sample_every, ": expected >= 1");
  Require(options.samples_per_halving >= 1 && options.samples_per_halving < std::numeric_limits<uint32_t>::max() / 2,
          "samples_per_halving is ", options.samples_per_halving, ": expected 1 to 2^31");
  sets_.resize(static_cast<size_t>((options.max_ids + kWays - 1) / kWays));
}

void HotTable::Note(const int64_t* ids, int64_t n) { NoteSample(ids, n); }
void HotTable::Note(const int32_t* ids, int64_t n) { NoteSample(ids, n); }

template <typename Id>
void HotTable::NoteSample(const Id* ids, int64_t n) {
  const int64_t step = options_.sample_every;
  const int64_t first = RandomStart(step);
  if (first >= n) return;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (int64_t i = first; i < n; i += step) {
    pending_[num_pending_++] = ids[i];
    if (num_pending_ == kMostPending) CountPending();
  }
}

void HotTable::CountPending() {
  for (int i = 0; i < num_pending_; ++i) {
    const Set* set = SetFor(pending_[i]);
    __builtin_prefetch(set->ids, 1);
    __builtin_prefetch(set->counts, 1);
  }
  for (int i = 0; i < num_pending_; ++i) Count(pending_[i]);
  num_pending_ = 0;
}

HotTable::Set* HotTable::SetFor(int64_t id) {
  return &sets_[SetOf(static_cast<uint64_t>(id), static_cast<int64_t>(sets_.size()))];
}

void HotTable::MakeUpHalvings(Set* set) const {
  if (set->halvings == halvings_) return;
  const uint32_t missed = std::min<uint32_t>(halvings_ - set->halvings, 31);
  for (uint32_t& count : set->counts) count >>= missed;
  set->halvings = halvings_;
}

void HotTable::Count(int64_t id) {
  Set* set = SetFor(id);
  MakeUpHalvings(set);
  if (++num_samples_ == options_.samples_per_halving) num_samples_ = 0, ++halvings_;
  int rarest = 0;
  for (int way = 0; way < kWays; ++way) {
    if (set->counts[way] > 0 && set->ids[way] == id) {
      ++set->counts[way];  // stays below twice samples_per_halving
      return;
    }
    if (set->counts[way] < set->counts[rarest]) rarest = way;
  }
  const uint32_t count = set->counts[rarest];
  if (RandomBelow(uint64_t{count} + 1, &random_) != 0) return;
  set->ids[rarest] = id;
  set->counts[rarest] = count + 1;
}

std::vector<HotRow> HotTable::Top(int64_t k) {
  Require(k >= 0, "k is ", k, ": expected >= 0");
  std::vector<HotRow> rows;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    CountPending();
    for (Set& set : sets_) {
      MakeUpHalvings(&set);
      for (int way = 0; way < kWays; ++way) {
        if (set.counts[way] > 0) rows.push_back({set.ids[way], set.counts[way]});
      }
    }
  }
  const auto end = rows.begin() + std::min<int64_t>(k, static_cast<int64_t>(rows.size()));
  std::partial_sort(rows.begin(), end, rows.end(), Hotter);
  rows.erase(end, rows.end());
  return rows;
}

void HotTable::Add(const std::vector<HotRow>& rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const HotRow& row : rows) {
    Set* set = SetFor(row.id);
    MakeUpHalvings(set);
    int place = -1;  // its own slot, else a free one
    for (int way = 0; way < kWays; ++way) {
      const bool here = set->counts[way] > 0 && set->ids[way] == row.id;
      if (here || (place < 0 && set->counts[way] == 0)) place = way;
      if (here) break;
    }
    if (place < 0) continue;
    set->ids[place] = row.id;
    // A file may say any count: it is cut first, so that the sum stays a small number.
    const int64_t count = set->counts[place] + std::min(row.count, options_.samples_per_halving);
    set->counts[place] = static_cast<uint32_t>(std::min(count, options_.samples_per_halving));
  }
}

}  // namespace rankhouse::cache
