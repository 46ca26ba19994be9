// The ids of a batch, sorted: table by table, by id, and equal ids in the order of their positions.
//
// Each id becomes a key, `id | source` from the top, whose source says where its contribution to the gradient comes
// from. Sources rise with positions, so sorting keys as numbers is sorting them stably by id.
//
//   count    a thread owns a part of a table's bags: checks them, and counts their ids by bucket (the high bits)
//   place    the same parts write an entry (low bits of the id | source, mostly 4 bytes) for each id into its bucket
//   sort     a thread owns a bucket, which mostly fits its L1 cache: radix sort by the low bits, keys written last
//
// Bytes: twice those of the ids and offsets read in order, and about 4 + 4 + 8 written for each id.
#ifndef RANKHOUSE_CPU_SORTED_IDS_H_
#define RANKHOUSE_CPU_SORTED_IDS_H_

#include <atomic>
#include <cstdint>

#include "core/lookup.h"
#include "cpu/scratch.h"

namespace rankhouse {

// Runs of equal ids of at least this length are shared by threads.
constexpr int64_t kLongRun = 8 * RH_GRADIENT_CHUNK;

// What an id adds to the gradient of its row: scale * row.
struct Contribution {
  const float* row;
  float scale;
};

// What the source in a key is.
enum class SourceKind : int32_t {
  kFeature,   // feature | row of its gradient: each feature has one scale
  kBag,       // the same: each bag has a scale
  kPosition,  // number of the id among those of the table: it has a Contribution
};

// One feature of a table.
struct FeatureSource {
  const Feature* feature;
  const float* grad;  // row r of its gradient lies at grad + r * stride
  int64_t stride;     // floats
  int64_t first;      // number of its first id among those of the table
  float scale;        // kFeature
  float* bag_scales;  // kBag: [B]
};

// A run of at least kLongRun equal ids.
struct LongRun {
  int32_t table;
  int64_t begin;  // among the keys of its table
  int64_t end;
};

// One table's share of the batch.
struct TableIds {
  const uint64_t* keys;           // [num_keys] sorted
  const FeatureSource* features;  // those that look up this table, in their order
  const Contribution* contributions;
  int64_t num_keys;  // without the ids that give a row of zeros
  int64_t num_ids;
  int64_t dim;
  int32_t num_features;
  SourceKind kind;
  int32_t row_bits;     // of a source: feature << row_bits | row
  int32_t source_bits;  // of a key
  int32_t table;
  bool direct;  // not sorted: cpu/direct_sums.h has its gradient; keys, num_keys, row_bits and source_bits say nothing

  int64_t Id(uint64_t key) const { return static_cast<int64_t>(key >> source_bits); }
  // The first key behind the run of `key`.
  const uint64_t* RunEnd(const uint64_t* key) const;
};

// Lives as long as the Lookup, the Scratch and `grad` that it was made with.
class SortedIds {
 public:
  // Chooses the tables that need no sort, plans that of the others, and takes the memory. Throws Error.
  SortedIds(const Lookup& lookup, const rh_feature_rows* grad, Scratch* scratch, const rh_executor* executor);

  // Throws the Error of the first bad bag, also of those that `fault` was told before.
  void Sort(const rh_executor* executor);
  FirstFault* fault() { return &fault_; }

  int32_t num_tables() const { return lookup_.num_tables(); }
  const TableIds& table(int32_t t) const { return tables_[t]; }
  const LongRun* long_runs() const { return long_runs_; }
  int64_t num_long_runs() const { return num_long_runs_.load(std::memory_order_relaxed); }

 private:
  // How one table is sorted.
  struct Plan {
    int32_t low_bits;  // of an id, below those that choose its bucket
    bool narrow;       // entries have 4 bytes, not 8
    int64_t num_buckets;
    int64_t num_parts;
    int64_t num_bags;
    int64_t first_part;    // among those of all tables
    int64_t first_bucket;  // among those of all tables
    uint32_t* counts;      // [num_parts, num_buckets] number of ids; later, where the part writes its next
    uint32_t* starts;      // [num_buckets + 1] where each bucket begins
    void* entries;         // [num_ids]
    void* spare;           // [num_ids]
    uint64_t* keys;        // [num_ids]
    Contribution* contributions;
  };
  // The bags [begin, end) of one feature.
  struct BagRange {
    const FeatureSource* source;
    int64_t begin;
    int64_t end;
  };

  void CollectFeatures(Scratch* scratch);
  void ChooseDirect(const rh_executor* executor);
  void PlanTable(int32_t t, Scratch* scratch);
  SourceKind ChooseKind(const TableIds& table) const;

  template <typename Body>
  void ForEachRange(int32_t t, int64_t part, Body body) const;
  template <typename Id>
  void CountPart(int32_t t, int64_t part);
  void SumCounts(int32_t t);
  template <typename Id, typename Entry>
  void PlacePart(int32_t t, int64_t part);
  void ScaleBag(const FeatureSource& source, int64_t sample, Bag bag, SourceKind kind, Contribution* contributions);
  template <typename Entry>
  void SortBucket(int32_t t, int64_t bucket);
  void FindLongRuns(int32_t t, int64_t begin, int64_t end);

  const Lookup& lookup_;
  const rh_feature_rows* grad_;
  FirstFault fault_;
  TableIds* tables_;  // [T]
  Plan* plans_;       // [T]
  FeatureSource* features_;
  LongRun* long_runs_;
  std::atomic<int64_t> num_long_runs_{0};
  int64_t num_parts_ = 0;
  int64_t num_buckets_ = 0;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_SORTED_IDS_H_
