// Pooled lookup on the CPU.
//
// A thread owns a block of samples: it writes all their outputs, feature by feature, and nobody else does. Every sum
// runs over one bag in the order of its ids, so threads cannot change a bit of it. Bytes moved: the rows, read at
// random (prefetched), the output written, the ids, offsets and weights read in order.
//
// Outputs that are narrower than a cache line and too many for the caches are put together for some samples at a time,
// and written as they lie in memory: alone each would have the memory read its line before it is written.
#include <algorithm>
#include <limits>
#include <memory>
#include <new>

#include "core/lookup.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/pool_rows.h"
#include "cpu/scratch.h"
#include "cpu/stream_floats.h"

namespace rankhouse {
namespace {

// A block's features are written next to each other: where their outputs leave the nearer caches meanwhile, that takes
// longer, and where blocks are short, rows are prefetched in vain at the end of each of its features. 26 tables of dim
// 16, 4096 samples of one id: 4 MiB are a tenth faster than 512 KiB.
constexpr int64_t kBlockFloats = 1024 * 1024;
// Outputs that no cache holds.
constexpr int64_t kStreamedFloats = int64_t{8} << 20;

// Narrow outputs that are put together: so many at a time that they stay in a core's cache with the rows they are of.
constexpr int64_t kNarrowFloats = 16;
constexpr int64_t kStagedFloats = 64 * 1024;

// What all threads share.
struct Pooling {
  const Lookup& lookup;
  const rh_feature_rows* outs;
  const PoolLoops& loops;
  const char* zero_row;  // as long as the longest row
  rh_bad_ids* counts;    // [T] of bad ids; `position` is that of the first among all ids
  FirstFault* bad_offsets;
  FirstFault* bad_rows;  // ids that are errors
  bool streams;
};

void LowerTo(int64_t* lowest, int64_t value) {
  int64_t seen = __atomic_load_n(lowest, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(lowest, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// One feature of a block of samples.
class FeatureBlock {
 public:
  FeatureBlock(const Pooling& pooling, const Feature& feature, int64_t begin, int64_t end)
      : pooling_(pooling),
        lookup_(pooling.lookup),
        feature_(feature),
        out_(pooling.outs[&feature - pooling.lookup.features().data()]),
        begin_(begin),
        end_(end) {}

  // Pooled rows go to `out`, whose first row is that of sample `begin`.
  FeatureBlock(const Pooling& pooling, const Feature& feature, int64_t begin, int64_t end, rh_feature_rows out)
      : pooling_(pooling),
        lookup_(pooling.lookup),
        feature_(feature),
        out_(out),
        begin_(begin),
        end_(end),
        first_(begin),
        staged_(true) {}

  void Pool() {
    if (!CheckOffsets()) return;
    if (feature_.combiner == RH_NONE) {
      CopyRows();
    } else {
      BagRun run = MakeRun(lookup_.bag(feature_, begin_).begin, end_ - begin_, (begin_ - first_) * out_.stride);
      const int64_t* offsets = lookup_.offsets(feature_);
      run.offsets = offsets == nullptr ? nullptr : offsets + begin_;
      run.hotness = feature_.hotness;
      run.weights = lookup_.weights();
      PoolRun(run);
    }
    if (bad_.count > 0) Report();
  }

 private:
  // Reports the first bag whose offsets are wrong.
  bool CheckOffsets() const {
    const int64_t* offsets = lookup_.offsets(feature_);
    if (offsets == nullptr) return true;
    bool good = feature_.first_id <= offsets[begin_] && offsets[end_] <= feature_.last_id;
    for (int64_t sample = begin_; sample < end_; ++sample) good &= offsets[sample] <= offsets[sample + 1];
    if (good) return true;
    int64_t sample = begin_;
    while (lookup_.bag(feature_, sample).Within(feature_)) ++sample;
    pooling_.bad_offsets->Report(lookup_, feature_, sample);
    return false;
  }

  // Without pooling every row is a bag of its own. A run goes as far as rows lie at one distance from the next.
  void CopyRows() {
    const int64_t first = lookup_.bag(feature_, begin_).begin;
    const int64_t num_ids = lookup_.bag(feature_, end_ - 1).end - first;
    const int64_t hotness = feature_.hotness;
    if (num_ids == 0) return;
    if (lookup_.offsets(feature_) != nullptr) {
      PoolRun(MakeRun(first, num_ids, (first - feature_.first_id) * out_.stride));
    } else if (hotness == 1) {
      PoolRun(MakeRun(first, num_ids, begin_ * out_.stride));
    } else {
      const bool side_by_side = out_.stride == hotness * feature_.dim;
      const int64_t samples = side_by_side ? end_ - begin_ : 1;
      for (int64_t sample = begin_; sample < end_; sample += samples) {
        BagRun run = MakeRun(first + (sample - begin_) * hotness, samples * hotness, sample * out_.stride);
        run.stride = feature_.dim;
        PoolRun(run);
      }
    }
  }

  // Bags of one id each, from a position in ids to one in the output.
  BagRun MakeRun(int64_t first_id, int64_t num_bags, int64_t out_offset) {
    BagRun run = {};
    run.feature = &feature_;
    run.ids = lookup_.raw().ids;
    run.first_id = first_id;
    run.hotness = 1;
    run.num_bags = num_bags;
    run.out = out_.data + out_offset;
    run.stride = out_.stride;
    run.combiner = feature_.combiner == RH_NONE ? static_cast<int32_t>(RH_SUM) : feature_.combiner;
    run.weighting = lookup_.raw().weighting;
    run.zero_row = pooling_.zero_row;
    run.bad = &bad_;
    return run;
  }

  void PoolRun(BagRun run) const {
    run.straddles = (reinterpret_cast<uintptr_t>(feature_.rows) | static_cast<uint64_t>(feature_.stride)) % 64 != 0;
    run.streams =
        pooling_.streams && !staged_ && reinterpret_cast<uintptr_t>(run.out) % 64 == 0 && run.stride % 16 == 0;
    PoolRows(pooling_.loops, lookup_.raw().id_type, run);
  }

  void Report() const {
    rh_bad_ids& counts = pooling_.counts[feature_.table];
    __atomic_fetch_add(&counts.count, bad_.count, __ATOMIC_RELAXED);
    LowerTo(&counts.position, bad_.first);
    if (bad_.first_fault == BadRows().first_fault) return;
    pooling_.bad_rows->Report(lookup_, feature_, lookup_.SampleOf(feature_, bad_.first_fault, begin_, end_));
  }

  const Pooling& pooling_;
  const Lookup& lookup_;
  const Feature& feature_;
  const rh_feature_rows out_;
  const int64_t begin_;
  const int64_t end_;
  const int64_t first_ = 0;  // the sample of the output's first row
  const bool staged_ = false;
  BadRows bad_;
};

// Features whose outputs are narrow and lie side by side.
class NarrowFeatures {
 public:
  // As many as there are from feature `first` on; none where outputs are not streamed, so that they are not counted
  // anew from each feature on.
  NarrowFeatures(const Pooling& pooling, size_t first) : pooling_(pooling), first_(first), end_(first) {
    if (!pooling.streams) return;
    const std::vector<Feature>& features = pooling.lookup.features();
    const rh_feature_rows* outs = pooling.outs;
    for (; end_ < features.size(); ++end_) {
      const Feature& feature = features[end_];
      if (feature.combiner == RH_NONE || feature.dim >= kNarrowFloats) break;
      if (outs[end_].stride != outs[first].stride || outs[end_].data != outs[first].data + width_) break;
      width_ += feature.dim;
    }
  }

  size_t end() const { return end_; }

  // Pools the samples [begin, end). Returns false where it is not worth it, or there is no memory.
  bool Pool(int64_t begin, int64_t end) const {
    if (end_ - first_ < 2) return false;
    const int64_t block = std::max<int64_t>(kStagedFloats / width_, 1);
    const std::unique_ptr<float[]> staged(new (std::nothrow) float[block * width_]);
    if (staged == nullptr) return false;
    const rh_feature_rows& out = pooling_.outs[first_];
    for (int64_t sample = begin; sample < end; sample += block) {
      const int64_t stop = std::min(sample + block, end);
      float* column = staged.get();
      for (size_t f = first_; f < end_; ++f) {
        const Feature& feature = pooling_.lookup.features()[f];
        FeatureBlock(pooling_, feature, sample, stop, {column, width_}).Pool();
        column += feature.dim;
      }
      for (int64_t k = 0; k < stop - sample; ++k) {
        StreamFloats(staged.get() + k * width_, width_, out.data + (sample + k) * out.stride);
      }
    }
    EndStream();
    return true;
  }

 private:
  const Pooling& pooling_;
  size_t first_;
  size_t end_;
  int64_t width_ = 0;
};

void PoolSamples(const Pooling& pooling, int64_t begin, int64_t end) {
  const std::vector<Feature>& features = pooling.lookup.features();
  int64_t width = 1;
  for (const Feature& feature : features) width += feature.dim;
  const int64_t block = features.size() == 1 ? end - begin : std::max<int64_t>(kBlockFloats / width, 8);
  for (int64_t sample = begin; sample < end; sample += block) {
    const int64_t stop = std::min(sample + block, end);
    for (size_t f = 0; f < features.size();) {
      const NarrowFeatures narrow(pooling, f);
      if (narrow.Pool(sample, stop)) {
        f = narrow.end();
      } else {
        FeatureBlock(pooling, features[f++], sample, stop).Pool();
      }
    }
  }
}

// From the lowest positions of bad ids in ids to where they are in the batch. Offsets are good.
void NameBadIds(const Lookup& lookup, const rh_bad_ids* counts, rh_bad_ids* bad_ids) {
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    if (counts[t].count == 0) continue;
    const int64_t n = counts[t].position;
    int64_t f = 0;
    while (lookup.features()[f].last_id <= n) ++f;
    const Feature& feature = lookup.features()[f];
    const int64_t sample = lookup.SampleOf(feature, n, 0, lookup.batch_size());
    bad_ids[t] = {counts[t].count, f, sample, n - lookup.bag(feature, sample).begin, lookup.id(n)};
  }
}

// About how many cycles one sample takes.
int64_t CostOfSample(const Lookup& lookup) {
  int64_t cost = 1;
  for (const Feature& feature : lookup.features()) {
    const int64_t num_ids = feature.last_id - feature.first_id;
    cost += num_ids * (10 + feature.stride / 12) / std::max<int64_t>(1, lookup.batch_size()) + feature.dim / 8;
  }
  return cost;
}

void PooledLookup(const rh_lookup* raw, const rh_feature_rows* out, rh_bad_ids* bad_ids, const rh_executor* executor) {
  const Lookup lookup(raw);
  lookup.CheckTableRows();
  lookup.CheckFeatureRows(out, "out");
  if (bad_ids != nullptr) std::fill_n(bad_ids, lookup.num_tables(), rh_bad_ids{});
  if (lookup.batch_size() == 0 || lookup.features().empty()) return;
  int64_t out_floats = 0;
  int64_t row_bytes = 0;
  for (const Feature& feature : lookup.features()) {
    const int64_t num_rows = feature.combiner == RH_NONE ? feature.last_id - feature.first_id : lookup.batch_size();
    out_floats += feature.dim * num_rows;
    row_bytes = std::max(row_bytes, rh_row_bytes(feature.type, feature.dim));
  }
  Scratch scratch(executor);
  char* zero_row = scratch.Take<char>(row_bytes);
  std::fill_n(zero_row, row_bytes, 0);
  rh_bad_ids* counts = scratch.Take<rh_bad_ids>(lookup.num_tables());
  std::fill_n(counts, lookup.num_tables(), rh_bad_ids{0, 0, 0, std::numeric_limits<int64_t>::max(), 0});
  FirstFault bad_offsets;
  FirstFault bad_rows;
  const Pooling pooling = {lookup, out,          BestPoolLoops(), zero_row,
                           counts, &bad_offsets, &bad_rows,       out_floats >= kStreamedFloats};
  ParallelFor(executor, lookup.batch_size(), CostOfSample(lookup),
              [&](int64_t begin, int64_t end) { PoolSamples(pooling, begin, end); });
  bad_offsets.Check(lookup);
  if (bad_ids != nullptr) NameBadIds(lookup, counts, bad_ids);
  bad_rows.Check(lookup);
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup(const rh_lookup* lookup, const rh_feature_rows* out, rh_bad_ids* bad_ids,
                     const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::PooledLookup(lookup, out, bad_ids, executor); });
}
