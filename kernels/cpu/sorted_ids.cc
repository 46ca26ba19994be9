#include "cpu/sorted_ids.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/sort_key.h"
#include "core/status.h"
#include "cpu/bag_scale.h"
#include "cpu/parallel.h"
#include "cpu/sort_bucket.h"

namespace rankhouse {
namespace {

// Buckets of about this many ids, so that one and what sorting it needs stay in the L1 cache; but no more of them than
// places can be written to at once without missing the L2 cache.
constexpr int64_t kBucketIds = 1024;
constexpr int kMaxBucketBits = 10;
// What a thread takes at a time, and the most parts of a table: each has counters for all buckets.
constexpr int64_t kPartIds = 16 * 1024;
constexpr int64_t kMaxParts = 64;

// Tables that one thread can do without a sort. More rows for each id are more to go through than a sort costs; wider
// rows are seldom in a cache when the next contribution comes.
constexpr int64_t kMaxDirectRowsPerId = 128;
constexpr int64_t kMaxDirectDim = 16;
constexpr int64_t kMaxDirectIds = std::numeric_limits<int32_t>::max();

int64_t Boundary(int64_t total, int64_t part, int64_t num_parts) {
  return total / num_parts * part + std::min(part, total % num_parts);
}

}  // namespace

const uint64_t* TableIds::RunEnd(const uint64_t* key) const {
  const uint64_t last = *key | ((uint64_t{1} << source_bits) - 1);
  return std::upper_bound(key, keys + num_keys, last);
}

SortedIds::SortedIds(const Lookup& lookup, const rh_feature_rows* grad, Scratch* scratch, const rh_executor* executor)
    : lookup_(lookup),
      grad_(grad),
      tables_(scratch->Take<TableIds>(lookup.num_tables())),
      plans_(scratch->Take<Plan>(lookup.num_tables())),
      features_(scratch->Take<FeatureSource>(static_cast<int64_t>(lookup.features().size()))),
      long_runs_(scratch->Take<LongRun>(lookup.num_ids() / kLongRun)) {
  CollectFeatures(scratch);
  ChooseDirect(executor);
  for (int32_t t = 0; t < lookup.num_tables(); ++t) PlanTable(t, scratch);
}

// Puts the features of each table side by side, in their order.
void SortedIds::CollectFeatures(Scratch* scratch) {
  const std::vector<Feature>& features = lookup_.features();
  for (int32_t t = 0; t < lookup_.num_tables(); ++t) tables_[t] = {};
  for (const Feature& feature : features) ++tables_[feature.table].num_features;
  FeatureSource* next = features_;
  for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
    tables_[t].table = t;
    tables_[t].dim = lookup_.table(t).dim;
    tables_[t].features = next;
    next += std::exchange(tables_[t].num_features, 0);
  }
  for (const Feature& feature : features) {
    TableIds& table = tables_[feature.table];
    const rh_feature_rows& rows = grad_[&feature - features.data()];
    // Rows that lie side by side in a sample follow one another in memory where samples do, too.
    const bool separate = feature.combiner == RH_NONE && lookup_.raw().offsets == nullptr;
    const int64_t stride = separate ? feature.dim : rows.stride;
    const float scale = lookup_.raw().offsets == nullptr ? ScaleOf(feature.combiner, feature.hotness) : 1.0f;
    features_[table.features - features_ + table.num_features++] = {&feature,      rows.data, stride,
                                                                    table.num_ids, scale,     nullptr};
    table.num_ids += feature.last_id - feature.first_id;
  }
  for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
    tables_[t].kind = ChooseKind(tables_[t]);
    if (tables_[t].kind != SourceKind::kBag) continue;
    for (int32_t f = 0; f < tables_[t].num_features; ++f) {
      features_[tables_[t].features - features_ + f].bag_scales = scratch->Take<float>(lookup_.batch_size());
    }
  }
}

SourceKind SortedIds::ChooseKind(const TableIds& table) const {
  bool weighted = false;
  bool scaled = false;
  bool separate = false;
  bool apart = false;
  for (const FeatureSource* source = table.features; source < table.features + table.num_features; ++source) {
    const Feature& feature = *source->feature;
    const bool none = feature.combiner == RH_NONE;
    weighted |= !none && lookup_.weights() != nullptr;
    scaled |= lookup_.raw().offsets != nullptr && (feature.combiner == RH_MEAN || feature.combiner == RH_SQRTN);
    separate |= none;
    apart |= none && lookup_.raw().offsets == nullptr &&
             grad_[source->feature - lookup_.features().data()].stride != feature.hotness * feature.dim;
  }
  if (weighted || apart || (scaled && separate)) return SourceKind::kPosition;
  return scaled ? SourceKind::kBag : SourceKind::kFeature;
}

// A table goes to one thread as long as it is no more than that thread's share.
void SortedIds::ChooseDirect(const rh_executor* executor) {
  const int64_t share = std::min<int64_t>(lookup_.num_ids() / NumThreads(executor), kMaxDirectIds);
  for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
    TableIds& table = tables_[t];
    table.direct = 0 < table.num_ids && table.num_ids <= share && table.dim <= kMaxDirectDim &&
                   lookup_.table(t).num_rows / kMaxDirectRowsPerId <= table.num_ids;
  }
}

void SortedIds::PlanTable(int32_t t, Scratch* scratch) {
  TableIds& table = tables_[t];
  Plan& plan = plans_[t];
  plan = {};
  plan.first_part = num_parts_;
  plan.first_bucket = num_buckets_;
  if (table.num_ids == 0 || table.direct) return;
  const int64_t num_rows = lookup_.table(t).num_rows;
  int64_t most_rows = lookup_.batch_size();
  for (int32_t f = 0; f < table.num_features; ++f) {
    const Feature& feature = *table.features[f].feature;
    if (feature.combiner == RH_NONE) most_rows = std::max(most_rows, feature.last_id - feature.first_id);
  }
  const bool by_position = table.kind == SourceKind::kPosition;
  table.row_bits = by_position ? BitWidth(table.num_ids) : BitWidth(most_rows);
  table.source_bits = table.row_bits + (by_position ? 0 : BitWidth(table.num_features));
  const int id_bits = BitWidth(num_rows);
  Require(id_bits + table.source_bits < 64 && table.num_ids <= std::numeric_limits<uint32_t>::max(), "table ", t,
          " has ", num_rows, " rows, too many to sort with ", table.num_ids, " ids of ", table.num_features,
          " features: split the table or the batch");
  const int bucket_bits = std::min({BitWidth(table.num_ids / kBucketIds), kMaxBucketBits, id_bits});
  plan.low_bits = id_bits - bucket_bits;
  plan.narrow = plan.low_bits + table.source_bits <= 32;
  plan.num_buckets = num_rows == 0 ? 1 : ((num_rows - 1) >> plan.low_bits) + 1;
  plan.num_bags = table.num_features * lookup_.batch_size();
  plan.num_parts = std::clamp<int64_t>(table.num_ids / kPartIds, 1, std::min(kMaxParts, plan.num_bags));
  plan.counts = scratch->Take<uint32_t>(plan.num_parts * plan.num_buckets);
  plan.starts = scratch->Take<uint32_t>(plan.num_buckets + 1);
  const int64_t words = plan.narrow ? (table.num_ids + 1) / 2 : table.num_ids;
  plan.entries = scratch->Take<uint64_t>(words);
  plan.spare = scratch->Take<uint64_t>(words);
  plan.keys = scratch->Take<uint64_t>(table.num_ids);
  plan.contributions = by_position ? scratch->Take<Contribution>(table.num_ids) : nullptr;
  table.keys = plan.keys;
  table.contributions = plan.contributions;
  num_parts_ += plan.num_parts;
  num_buckets_ += plan.num_buckets;
}

void SortedIds::Sort(const rh_executor* executor) {
  const int64_t num_tables = lookup_.num_tables();
  const int64_t num_ids = lookup_.num_ids();
  const bool small_ids = lookup_.raw().id_type == RH_INT32;
  const auto plan_of = [&](int64_t unit, int64_t Plan::* first) {
    const Plan* plan = std::upper_bound(plans_, plans_ + num_tables, unit,
                                        [first](int64_t value, const Plan& plan) { return value < plan.*first; });
    return static_cast<int32_t>(plan - plans_ - 1);
  };
  const int64_t ids_of_part = num_ids / std::max<int64_t>(1, num_parts_) + 1;
  ForEach(executor, num_parts_, 1, 4 * ids_of_part, [&](int64_t unit) {
    const int32_t t = plan_of(unit, &Plan::first_part);
    const int64_t part = unit - plans_[t].first_part;
    small_ids ? CountPart<int32_t>(t, part) : CountPart<int64_t>(t, part);
  });
  fault_.Check(lookup_);
  for (int32_t t = 0; t < num_tables; ++t) SumCounts(t);
  ForEach(executor, num_parts_, 1, 8 * ids_of_part, [&](int64_t unit) {
    const int32_t t = plan_of(unit, &Plan::first_part);
    const int64_t part = unit - plans_[t].first_part;
    if (plans_[t].narrow) {
      small_ids ? PlacePart<int32_t, uint32_t>(t, part) : PlacePart<int64_t, uint32_t>(t, part);
    } else {
      small_ids ? PlacePart<int32_t, uint64_t>(t, part) : PlacePart<int64_t, uint64_t>(t, part);
    }
  });
  const int64_t ids_of_bucket = num_ids / std::max<int64_t>(1, num_buckets_) + 1;
  ForEach(executor, num_buckets_, 4, 12 * ids_of_bucket, [&](int64_t unit) {
    const int32_t t = plan_of(unit, &Plan::first_bucket);
    const int64_t bucket = unit - plans_[t].first_bucket;
    plans_[t].narrow ? SortBucket<uint32_t>(t, bucket) : SortBucket<uint64_t>(t, bucket);
  });
  std::sort(long_runs_, long_runs_ + num_long_runs(), [](const LongRun& a, const LongRun& b) {
    return a.table != b.table ? a.table < b.table : a.begin < b.begin;
  });
}

// Calls body(bag range) for the features' shares of a part.
template <typename Body>
void SortedIds::ForEachRange(int32_t t, int64_t part, Body body) const {
  const Plan& plan = plans_[t];
  const int64_t batch_size = lookup_.batch_size();
  int64_t bag = Boundary(plan.num_bags, part, plan.num_parts);
  const int64_t end = Boundary(plan.num_bags, part + 1, plan.num_parts);
  while (bag < end) {
    const int64_t f = bag / batch_size;
    const int64_t stop = std::min(end, (f + 1) * batch_size);
    body(BagRange{&tables_[t].features[f], bag - f * batch_size, stop - f * batch_size});
    bag = stop;
  }
}

template <typename Id>
void SortedIds::CountPart(int32_t t, int64_t part) {
  const Plan& plan = plans_[t];
  uint32_t* counts = plan.counts + part * plan.num_buckets;
  std::memset(counts, 0, plan.num_buckets * sizeof(uint32_t));
  ForEachRange(t, part, [&](const BagRange& range) {
    const Feature& feature = *range.source->feature;
    // Good bags lie side by side, so that their ids can be counted without looking at bags again.
    int64_t sample = range.begin;
    while (sample < range.end && lookup_.bag(feature, sample).Within(feature)) ++sample;
    if (sample < range.end) fault_.Report(lookup_, feature, sample);
    if (sample == range.begin) return;
    const int64_t begin = lookup_.bag(feature, range.begin).begin;
    const int64_t end = lookup_.bag(feature, sample - 1).end;
    const Id* ids = lookup_.ids<Id>();
    const int low_bits = plan.low_bits;
    const int64_t num_rows = feature.num_rows;
    uint32_t* const count = counts;
    for (int64_t n = begin; n < end; ++n) {
      int64_t row = ids[n];
      if (__builtin_expect(static_cast<uint64_t>(row) >= static_cast<uint64_t>(num_rows), 0)) {
        row = feature.Row(row);
        if (row == kZeroRow) continue;
        if (row == kFault) {
          sample = range.begin;
          while (lookup_.bag(feature, sample).end <= n) ++sample;
          return fault_.Report(lookup_, feature, sample);
        }
      }
      ++count[row >> low_bits];
    }
  });
}

// From the counts of all parts, where each part's entries of each bucket begin.
void SortedIds::SumCounts(int32_t t) {
  const Plan& plan = plans_[t];
  if (plan.num_parts == 0) return;
  uint32_t sum = 0;
  for (int64_t bucket = 0; bucket < plan.num_buckets; ++bucket) {
    plan.starts[bucket] = sum;
    for (int64_t part = 0; part < plan.num_parts; ++part) {
      sum += std::exchange(plan.counts[part * plan.num_buckets + bucket], sum);
    }
  }
  plan.starts[plan.num_buckets] = sum;
  tables_[t].num_keys = sum;
}

template <typename Id, typename Entry>
void SortedIds::PlacePart(int32_t t, int64_t part) {
  const Plan plan = plans_[t];
  const TableIds& table = tables_[t];
  const SourceKind kind = table.kind;
  uint32_t* next = plan.counts + part * plan.num_buckets;
  Entry* entries = static_cast<Entry*>(plan.entries);
  ForEachRange(t, part, [&](const BagRange& range) {
    const FeatureSource& source = *range.source;
    const Feature feature = *source.feature;
    const Id* ids = lookup_.ids<Id>();
    const int64_t step = kind == SourceKind::kPosition || feature.combiner == RH_NONE ? 1 : 0;
    const uint64_t high = kind == SourceKind::kPosition
                              ? source.first
                              : static_cast<uint64_t>(&source - table.features) << table.row_bits;
    // Copies: entries that are written could otherwise overlap what the loop reads.
    const int low_bits = plan.low_bits;
    const int source_bits = table.source_bits;
    const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
    uint32_t* const place = next;
    Entry* const to = entries;
    for (int64_t sample = range.begin; sample < range.end; ++sample) {
      const Bag bag = lookup_.bag(*source.feature, sample);
      if (kind != SourceKind::kFeature) ScaleBag(source, sample, bag, kind, plan.contributions);
      uint64_t from = high + (step != 0 ? bag.begin - feature.first_id : sample);
      for (int64_t n = bag.begin; n < bag.end; ++n, from += step) {
        int64_t row = ids[n];
        if (__builtin_expect(!feature.Has(row), 0)) row = feature.Row(row);
        if (__builtin_expect(row < 0, 0)) continue;
        const uint64_t low = static_cast<uint64_t>(row) & low_mask;
        to[place[row >> low_bits]++] = static_cast<Entry>(low << source_bits | from);
      }
    }
  });
}

// Writes what the ids of a bag contribute, or the scale that all of them have.
void SortedIds::ScaleBag(const FeatureSource& source, int64_t sample, Bag bag, SourceKind kind,
                         Contribution* contributions) {
  const Feature& feature = *source.feature;
  const int64_t num_ids = bag.end - bag.begin;
  const float* weights = feature.combiner == RH_NONE ? nullptr : lookup_.weights();
  const float scale = BagScale(lookup_, feature, bag);
  if (kind == SourceKind::kBag) {
    source.bag_scales[sample] = scale;
    return;
  }
  const float* row = source.grad + sample * source.stride;
  int64_t step = 0;
  if (feature.combiner == RH_NONE) {
    const rh_feature_rows& rows = grad_[source.feature - lookup_.features().data()];
    const bool fixed = lookup_.raw().offsets == nullptr;
    row = rows.data + (fixed ? sample : bag.begin - feature.first_id) * rows.stride;
    step = fixed ? feature.dim : rows.stride;
  }
  Contribution* contribution = contributions + source.first + (bag.begin - feature.first_id);
  for (int64_t k = 0; k < num_ids; ++k) {
    contribution[k] = {row + k * step, weights == nullptr ? scale : weights[bag.begin + k] * scale};
  }
}

template <typename Entry>
void SortedIds::SortBucket(int32_t t, int64_t bucket) {
  const Plan& plan = plans_[t];
  const int64_t begin = plan.starts[bucket];
  const int64_t end = plan.starts[bucket + 1];
  const int source_bits = tables_[t].source_bits;
  const uint64_t high = static_cast<uint64_t>(bucket) << plan.low_bits << source_bits;
  rankhouse::SortBucket(static_cast<Entry*>(plan.entries) + begin, static_cast<Entry*>(plan.spare) + begin, end - begin,
                        {source_bits, plan.low_bits}, high, plan.keys + begin);
  if (end - begin >= kLongRun) FindLongRuns(t, begin, end);
}

// Finds the long runs among the sorted keys [begin, end) of a bucket. Each holds keys at both ends of some stretch of
// half its least length that begins at a multiple of it.
void SortedIds::FindLongRuns(int32_t t, int64_t begin, int64_t end) {
  const TableIds& table = tables_[t];
  constexpr int64_t kStep = kLongRun / 2;
  for (int64_t k = begin; k + kStep < end;) {
    if (table.Id(table.keys[k]) != table.Id(table.keys[k + kStep])) {
      k += kStep;
      continue;
    }
    const uint64_t first_key = static_cast<uint64_t>(table.Id(table.keys[k])) << table.source_bits;
    const uint64_t last_key = first_key | ((uint64_t{1} << table.source_bits) - 1);
    const int64_t run = std::lower_bound(table.keys + begin, table.keys + k, first_key) - table.keys;
    const int64_t run_end = std::upper_bound(table.keys + k, table.keys + end, last_key) - table.keys;
    if (run_end - run >= kLongRun) {
      long_runs_[num_long_runs_.fetch_add(1, std::memory_order_relaxed)] = {t, run, run_end};
    }
    k += std::max(kStep, (run_end - k) / kStep * kStep);
  }
}

}  // namespace rankhouse
