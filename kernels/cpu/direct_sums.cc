#include "cpu/direct_sums.h"

#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/update_rows.h"

namespace rankhouse {
namespace {

// How far ahead words of touched rows are prefetched, in ids.
constexpr int64_t kWordsAhead = 32;
// Tables go together as long as their sums are no more than half of a core's cache, and there is enough left to share
// out. They read the gradient sample by sample then, as it lies in memory, so many samples at a time.
constexpr int64_t kGroupFloats = 256 * 1024;
constexpr int64_t kGroupsPerThread = 2;
constexpr int64_t kGroupSamples = 128;

}  // namespace

DirectSums::DirectSums(const Lookup& lookup, const rh_feature_rows* grad, const SortedIds& ids, Scratch* scratch,
                       const rh_executor* executor)
    : lookup_(lookup), grad_(grad), executor_(executor), tables_(scratch->Take<Table>(lookup.num_tables())) {
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    const TableIds& table = ids.table(t);
    if (!table.direct) continue;
    const int64_t num_words = TouchedRows::NumWords(lookup.table(t).num_rows);
    const int64_t max_chunks = table.num_ids / RH_GRADIENT_CHUNK;
    RowSums sums = {};
    sums.dim = table.dim;
    sums.chunk_places = scratch->Take<uint64_t>(max_chunks);
    sums.chunks = scratch->Take<float>(max_chunks * table.dim);
    tables_[num_tables_++] = {&table, {scratch->Take<TouchedRows::Word>(num_words), num_words}, 0, nullptr, sums};
  }
  MakeGroups(scratch);
}

void DirectSums::MakeGroups(Scratch* scratch) {
  groups_ = scratch->Take<Group>(num_tables_);
  const int64_t max_ids = lookup_.num_ids() / (kGroupsPerThread * NumThreads(executor_));
  int64_t floats = 0;
  int64_t num_ids = 0;
  for (Table* table = tables_; table < tables_ + num_tables_; ++table) {
    const TableIds& ids = *table->ids;
    const int64_t own = std::min(ids.num_ids, lookup_.table(ids.table).num_rows) * ids.dim;
    Group* last = groups_ + num_groups_ - 1;
    if (num_groups_ > 0 && ids.num_features == 1 && last->begin->ids->num_features == 1 &&
        floats + own <= kGroupFloats && last->num_ids + ids.num_ids <= max_ids) {
      last->end = table + 1;
      last->num_ids += ids.num_ids;
      floats += own;
    } else {
      groups_[num_groups_++] = {table, table + 1, ids.num_ids};
      floats = own;
    }
    num_ids += ids.num_ids;
  }
  ids_of_group_ = num_ids / std::max<int64_t>(1, num_groups_);
  std::stable_sort(groups_, groups_ + num_groups_,
                   [](const Group& a, const Group& b) { return a.num_ids > b.num_ids; });
}

void DirectSums::FindRows(FirstFault* fault) {
  ForEach(executor_, num_groups_, 1, 8 * ids_of_group_, [&](int64_t n) {
    for (Table* table = groups_[n].begin; table < groups_[n].end; ++table) FindRowsOf(table, fault);
  });
}

void DirectSums::FindRowsOf(Table* table, FirstFault* fault) const {
  const bool small_ids = lookup_.raw().id_type == RH_INT32;
  table->touched.Clear();
  for (int32_t f = 0; f < table->ids->num_features; ++f) {
    const Feature& feature = *table->ids->features[f].feature;
    small_ids ? Touch<int32_t>(feature, table->touched, fault) : Touch<int64_t>(feature, table->touched, fault);
  }
  table->num_rows = table->touched.Count();
}

template <typename Id>
void DirectSums::Touch(const Feature& feature, const TouchedRows& touched, FirstFault* fault) const {
  // Good bags lie side by side, so that their ids can be looked at without the bags.
  const int64_t batch_size = lookup_.batch_size();
  int64_t sample = 0;
  if (lookup_.raw().offsets == nullptr) sample = batch_size;
  while (sample < batch_size && lookup_.bag(feature, sample).Within(feature)) ++sample;
  if (sample < batch_size) fault->Report(lookup_, feature, sample);
  if (sample == 0) return;
  const int64_t end = lookup_.bag(feature, sample - 1).end;
  const Id* ids = lookup_.ids<Id>();
  for (int64_t n = feature.first_id; n < end; ++n) {
    if (n + kWordsAhead < end) touched.Prefetch(ids[n + kWordsAhead]);
    int64_t row = ids[n];
    if (__builtin_expect(!feature.Has(row), 0)) {
      row = feature.Row(row);
      if (row == kZeroRow) continue;
      if (row == kFault) return fault->Report(lookup_, feature, lookup_.SampleOf(feature, n, 0, sample));
    }
    touched.Touch(row);
  }
}

void DirectSums::CountRows(Target* targets) const {
  for (int64_t n = 0; n < num_tables_; ++n) targets[tables_[n].ids->table].num_rows = tables_[n].num_rows;
}

int64_t DirectSums::FindBadLastStep(int32_t t, const int32_t* last_steps, int64_t step) const {
  const Table* table =
      std::find_if(tables_, tables_ + num_tables_, [t](const Table& it) { return it.ids->table == t; });
  int64_t first = -1;
  if (table == tables_ + num_tables_) return first;
  table->touched.ForEach([&](int64_t row) {
    if (first < 0 && (last_steps[row] < 0 || last_steps[row] >= step)) first = row;
  });
  return first;
}

void DirectSums::Run(const Target* targets, Scratch* scratch) {
  for (int64_t n = 0; n < num_tables_; ++n) {
    Table& table = tables_[n];
    const Target& target = targets[table.ids->table];
    const bool written = target.ids != nullptr;
    table.row_ids = written ? target.ids : scratch->Take<int64_t>(table.num_rows);
    table.sums.rows = written ? target.rows : scratch->Take<float>(table.num_rows * table.sums.dim);
    table.sums.counts = scratch->Take<uint8_t>(table.num_rows);
  }
  ForEach(executor_, num_groups_, 1, 20 * ids_of_group_, [&](int64_t n) { RunGroup(groups_[n], targets); });
}

void DirectSums::RunGroup(const Group& group, const Target* targets) const {
  for (Table* table = group.begin; table < group.end; ++table) {
    int64_t* next = table->row_ids;
    table->touched.ForEach([&](int64_t row) { *next++ = row; });
    ClearSums(table->num_rows, &table->sums);
  }
  const int64_t batch_size = lookup_.batch_size();
  const int64_t step = group.end - group.begin > 1 ? kGroupSamples : batch_size;
  for (int64_t begin = 0; begin < batch_size; begin += step) {
    for (Table* table = group.begin; table < group.end; ++table) {
      for (int32_t f = 0; f < table->ids->num_features; ++f) {
        const Feature& feature = *table->ids->features[f].feature;
        AddSamples(lookup_, feature, grad_[&feature - lookup_.features().data()], table->touched, begin,
                   std::min(begin + step, batch_size), &table->sums);
      }
    }
  }
  for (Table* table = group.begin; table < group.end; ++table) {
    AddChunks(&table->sums);
    const Target& target = targets[table->ids->table];
    if (target.ids != nullptr || target.trained == nullptr) continue;
    UpdateRows(target.constants, *target.trained, table->row_ids, table->sums.rows, table->num_rows);
  }
}

}  // namespace rankhouse
