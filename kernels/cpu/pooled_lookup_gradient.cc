// The backward of pooled lookup on the CPU: sort the ids of each table, then add up the gradients of each run of equal
// ids.
//
// Sorting: a thread owns a table. Adding: a thread owns the runs that begin in its range of the sorted ids, and writes
// their rows. A run is added up by one thread in the order of positions, so threads cannot change a bit of it. Bytes
// moved: 16 per id and radix pass, N * D * 4 of grad read at random (prefetched), U * (8 + D * 4) written.
#include <algorithm>
#include <memory>

#include "core/lookup.h"
#include "core/sort_key.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/radix_sort.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

// The ids of one table as sort keys.
struct TableKeys {
  uint64_t* keys;   // [num_keys]
  uint64_t* spare;  // [num_keys] for sorting
  int64_t* starts;  // [num_runs + 1] where each run of equal ids begins in the sorted keys
  int64_t num_keys;
  int64_t first;  // position of its first key among those of all tables
};

// What the keys refer to.
struct Source {
  const Lookup& lookup;
  const rh_feature_rows* grad;  // [F]
  KeyLayout layout;

  RH_INLINE const Feature& FeatureOf(uint64_t key) const { return lookup.features()[layout.Feature(key)]; }
  RH_INLINE const float* Row(uint64_t key) const {
    const rh_feature_rows& rows = grad[layout.Feature(key)];
    return rows.data + layout.Sample(key) * rows.stride;
  }
  RH_INLINE float Scale(uint64_t key) const {
    const Feature& feature = FeatureOf(key);
    if (feature.combiner != RH_MEAN) return 1.0f;
    const Bag bag = lookup.bag(feature, layout.Sample(key));
    return 1.0f / static_cast<float>(bag.end - bag.begin);
  }
};

// sum [dim] = the gradients of the keys [begin, end), columns from `column` on. `last` bounds what may be prefetched.
RH_INLINE void AddUpChunk(const Source& source, const uint64_t* begin, const uint64_t* end, const uint64_t* last,
                          int64_t column, int64_t dim, float* __restrict sum) {
  for (const uint64_t* key = begin; key < end; ++key) {
    if (key + kPrefetchRows < last) PrefetchRow(source.Row(key[kPrefetchRows]) + column, 0, dim);
    const float* __restrict row = source.Row(*key) + column;
    const float scale = source.Scale(*key);
    if (key == begin) {
      for (int64_t d = 0; d < dim; ++d) sum[d] = scale * row[d];
    } else {
      for (int64_t d = 0; d < dim; ++d) sum[d] += scale * row[d];
    }
  }
}

// rows [num_runs, dim]: adds up the runs [first, last). kDim is the width where it is known at compile time, else 0.
template <int64_t kDim>
RH_INLINE void AddUpRunsOf(const Source& source, const TableKeys& table, int64_t first, int64_t last, int64_t table_dim,
                           float* rows) {
  constexpr int64_t kMaxColumns = 256;
  const int64_t dim = kDim > 0 ? kDim : table_dim;
  const uint64_t* keys_end = table.keys + table.num_keys;
  float partial[kDim > 0 ? kDim : kMaxColumns] = {};
  for (int64_t run = first; run < last; ++run) {
    const uint64_t* run_end = table.keys + table.starts[run + 1];
    for (int64_t column = 0; column < dim; column += kMaxColumns) {
      const int64_t columns = kDim > 0 ? kDim : std::min(kMaxColumns, dim - column);
      const uint64_t* chunk = table.keys + table.starts[run];
      const uint64_t* chunk_end = std::min(chunk + RH_GRADIENT_CHUNK, run_end);
      float* __restrict sum = rows + run * dim + column;
      AddUpChunk(source, chunk, chunk_end, keys_end, column, columns, sum);
      for (chunk = chunk_end; chunk < run_end; chunk = chunk_end) {
        chunk_end = std::min(chunk + RH_GRADIENT_CHUNK, run_end);
        AddUpChunk(source, chunk, chunk_end, keys_end, column, columns, partial);
        for (int64_t d = 0; d < columns; ++d) sum[d] += partial[d];
      }
    }
  }
}

RH_SIMD void AddUpRuns(const Source& source, const TableKeys& table, int64_t first, int64_t last, int64_t dim,
                       float* rows) {
  switch (dim) {
    case 16:
      return AddUpRunsOf<16>(source, table, first, last, dim, rows);
    case 32:
      return AddUpRunsOf<32>(source, table, first, last, dim, rows);
    case 64:
      return AddUpRunsOf<64>(source, table, first, last, dim, rows);
    case 128:
      return AddUpRunsOf<128>(source, table, first, last, dim, rows);
    default:
      return AddUpRunsOf<0>(source, table, first, last, dim, rows);
  }
}

class Backward {
 public:
  // Checks the outputs. Throws Error.
  Backward(const Lookup& lookup, const rh_feature_rows* grad, rh_sparse_gradient* gradients)
      : lookup_(lookup),
        gradients_(gradients),
        source_{
            lookup, grad, {BitWidth(static_cast<int64_t>(lookup.features().size())), BitWidth(lookup.batch_size())}},
        keys_(new uint64_t[2 * lookup.num_ids()]),
        starts_(new int64_t[lookup.num_ids() + lookup.num_tables()]) {
    const std::vector<int64_t> num_keys = lookup.IdsPerTable();
    int64_t first = 0;
    for (int32_t t = 0; t < lookup.num_tables(); ++t) {
      CheckTable(t, num_keys[t]);
      tables_.push_back(
          {keys_.get() + first, keys_.get() + lookup.num_ids() + first, starts_.get() + first + t, num_keys[t], first});
      first += num_keys[t];
    }
  }

  void Run(const rh_executor* executor) {
    FirstFault fault;
    const int64_t num_tables = lookup_.num_tables();
    const int64_t keys_per_table = lookup_.num_ids() / std::max<int64_t>(1, num_tables);
    ParallelFor(executor, num_tables, 1000 + 30 * keys_per_table, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        if (CollectKeys(static_cast<int32_t>(t), &fault)) SortAndCut(static_cast<int32_t>(t));
      }
    });
    fault.Check(lookup_);
    const int64_t num_features = static_cast<int64_t>(lookup_.features().size());
    int64_t width = 0;
    for (const Feature& feature : lookup_.features()) width += feature.dim;
    const int64_t cost = 30 + width / std::max<int64_t>(1, num_features);
    ParallelFor(executor, lookup_.num_ids(), cost, [&](int64_t begin, int64_t end) { AddUp(begin, end); });
  }

 private:
  void CheckTable(int32_t t, int64_t num_keys) const {
    const int64_t num_rows = lookup_.table(t).num_rows;
    Require(BitWidth(num_rows) + source_.layout.id_shift() <= 64, "table ", t, " has ", num_rows,
            " rows, too many to sort with ", lookup_.features().size(), " features of ", lookup_.batch_size(),
            " samples: split the table or the batch");
    const int64_t needed = std::min(num_keys, num_rows);
    Require(gradients_[t].capacity >= needed, "the gradient of table ", t, " has capacity ", gradients_[t].capacity,
            ": expected at least ", needed, " (see rh_gradient_capacity)");
    Require(needed == 0 || (gradients_[t].ids != nullptr && gradients_[t].rows != nullptr), "the gradient of table ", t,
            " has NULL ids or rows");
  }

  // Fills the keys of a table, in the order of positions. Returns false where a bag is wrong.
  bool CollectKeys(int32_t t, FirstFault* fault) const {
    uint64_t* key = tables_[t].keys;
    for (size_t f = 0; f < lookup_.features().size(); ++f) {
      const Feature& feature = lookup_.features()[f];
      if (feature.table != t) continue;
      for (int64_t sample = 0; sample < lookup_.batch_size(); ++sample) {
        const Bag bag = lookup_.bag(feature, sample);
        bool good = bag.Within(feature);
        for (int64_t n = bag.begin; good && n < bag.end; ++n) {
          const int64_t id = lookup_.id(n);
          good = static_cast<uint64_t>(id) < static_cast<uint64_t>(feature.num_rows);
          if (good) *key++ = source_.layout.Key(id, static_cast<int64_t>(f), sample);
        }
        if (!good) {
          fault->Report(lookup_, feature, sample);
          return false;
        }
      }
    }
    return true;
  }

  // Sorts the keys of a table, and writes its unique ids and where their runs begin.
  void SortAndCut(int32_t t) {
    TableKeys& table = tables_[t];
    const KeyLayout layout = source_.layout;
    table.keys =
        RadixSort(table.keys, table.spare, table.num_keys, layout.id_shift(), BitWidth(lookup_.table(t).num_rows));
    int64_t num_runs = 0;
    int64_t last_id = -1;
    for (int64_t k = 0; k < table.num_keys; ++k) {
      const int64_t id = layout.Id(table.keys[k]);
      if (id == last_id) continue;
      table.starts[num_runs] = k;
      gradients_[t].ids[num_runs++] = last_id = id;
    }
    table.starts[num_runs] = table.num_keys;
    gradients_[t].num_rows = num_runs;
  }

  // Adds up the runs that begin at [begin, end) among the keys of all tables.
  void AddUp(int64_t begin, int64_t end) const {
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TableKeys& table = tables_[t];
      if (end <= table.first || table.first + table.num_keys <= begin) continue;
      const int64_t* starts = table.starts;
      const int64_t* starts_end = starts + gradients_[t].num_rows;
      const int64_t first = std::lower_bound(starts, starts_end, begin - table.first) - starts;
      const int64_t last = std::lower_bound(starts, starts_end, end - table.first) - starts;
      AddUpRuns(source_, table, first, last, lookup_.table(static_cast<int32_t>(t)).dim, gradients_[t].rows);
    }
  }

  const Lookup& lookup_;
  rh_sparse_gradient* gradients_;
  Source source_;
  std::vector<TableKeys> tables_;
  std::unique_ptr<uint64_t[]> keys_;  // two halves, between which RadixSort goes back and forth
  std::unique_ptr<int64_t[]> starts_;
};

}  // namespace
}  // namespace rankhouse

int rh_gradient_capacity(const rh_lookup* lookup, int64_t* capacity) {
  return rankhouse::Guard([&] {
    const rankhouse::Lookup checked(lookup);
    rankhouse::Require(checked.num_tables() == 0 || capacity != nullptr, "capacity is NULL");
    const std::vector<int64_t> num_ids = checked.IdsPerTable();
    for (int32_t t = 0; t < checked.num_tables(); ++t) capacity[t] = std::min(num_ids[t], checked.table(t).num_rows);
  });
}

int rh_pooled_lookup_gradient(const rh_lookup* lookup, const rh_feature_rows* grad, rh_sparse_gradient* gradients,
                              const rh_executor* executor) {
  return rankhouse::Guard([&] {
    const rankhouse::Lookup checked(lookup);
    rankhouse::Require(checked.num_tables() == 0 || gradients != nullptr, "gradients is NULL");
    checked.CheckFeatureRows(grad, "grad");
    rankhouse::Backward(checked, grad, gradients).Run(executor);
  });
}
