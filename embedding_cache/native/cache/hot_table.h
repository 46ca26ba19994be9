// The hot ids of a table, learnt from those that are looked up, in memory of a fixed size.
//
// The sketch is the d-way RAP of Ben Basat, Einziger, Friedman and Kassner, "Randomized Admission Policy for Efficient
// Top-k and Frequency Estimation" (INFOCOM 2017): sets of ids with counts, in which a new id takes the place of the
// rarest, of count c, with probability 1 / (c + 1), and counts c + 1 from then on. So what comes once hardly ever
// pushes out what comes often, and the expected count of an id is right. All counts halve after every
// `samples_per_halving` samples, so that the past fades. Only one in `sample_every` ids is looked at, from a random one
// of each call on.
#ifndef RANKHOUSE_CACHE_HOT_TABLE_H_
#define RANKHOUSE_CACHE_HOT_TABLE_H_

#include <cstdint>
#include <mutex>
#include <vector>

namespace rankhouse::cache {

struct HotRowOptions {
  int64_t max_ids = 1 << 16;                       // counted per table, 13 bytes each; for the top k, 4 k or more
  int64_t sample_every = 256;                      // 1: every id counts
  int64_t samples_per_halving = int64_t{1} << 19;  // of a table
};

struct HotRow {
  int64_t id;
  int64_t count;  // samples, halved with time
};

// The hot ids of one table. Any thread may call everything.
class HotTable {
 public:
  // Throws Error where an option is out of its range.
  explicit HotTable(const HotRowOptions& options);

  // Takes note of ids [n] that were looked up. Cheap enough for every lookup: a thread that finds another one noting
  // drops its sample and goes on.
  void Note(const int64_t* ids, int64_t n);
  void Note(const int32_t* ids, int64_t n);

  // The hottest k ids or as many as there are, hottest first; ties: the smaller id.
  std::vector<HotRow> Top(int64_t k);

  // Takes over what another table's Top gave, hottest first; what does not fit is left out. Counts add up.
  void Add(const std::vector<HotRow>& rows);

 private:
  static constexpr int kWays = 8;
  // Samples wait until so many can be counted together, each of whose sets is then on its way from memory at once.
  static constexpr int kMostPending = 64;

  // Slots of count 0 are free: no id is reserved.
  struct Set {
    int64_t ids[kWays];
    uint32_t counts[kWays];
    uint32_t halvings;  // that these counts have been through; the others follow when the set is next looked at
  };

  template <typename Id>
  void NoteSample(const Id* ids, int64_t n);
  void CountPending();
  void Count(int64_t id);
  Set* SetFor(int64_t id);
  void MakeUpHalvings(Set* set) const;

  const HotRowOptions options_;
  std::mutex mutex_;  // guards all below
  int64_t pending_[kMostPending];
  int num_pending_ = 0;
  std::vector<Set> sets_;
  int64_t num_samples_ = 0;  // since the last halving
  uint32_t halvings_ = 0;
  uint64_t random_ = 1;
};

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_HOT_TABLE_H_
