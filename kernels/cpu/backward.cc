#include "cpu/backward.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "cpu/combine_runs.h"
#include "cpu/parallel.h"
#include "cpu/update_rows.h"

namespace rankhouse {
namespace {

constexpr int64_t kUnitKeys = 2048;
constexpr int64_t kGroupChunks = kLongRun / RH_GRADIENT_CHUNK;

int64_t NumChunks(const LongRun& run) { return (run.end - run.begin - 1) / RH_GRADIENT_CHUNK + 1; }
int64_t NumGroups(const LongRun& run) { return (NumChunks(run) - 1) / kGroupChunks + 1; }

// Gradients on their way to an update: few, so that they and what is prefetched stay in the caches, but enough that
// memory is seldom idle between what two blocks prefetch. Of wide rows, which are not prefetched to their ends, few
// pay: blocks of 4096 floats were up to a tenth slower at 256 and 512 columns, those of 8 rows at 128 columns too.
struct Block {
  static constexpr int64_t kMaxRows = 32;
  static constexpr int64_t kWide = 128;         // columns; wider rows have smaller blocks
  static constexpr int64_t kWideFloats = 1024;  // more where a single row is wider

  static int64_t MaxRows(int64_t dim) { return dim <= kWide ? kMaxRows : std::max<int64_t>(1, kWideFloats / dim); }

  int64_t ids[kMaxRows];
  alignas(64) float rows[kMaxFusedDim];
  static_assert(kMaxRows * kWide <= kMaxFusedDim, "a block fits");
};

// What an update of a row reads and writes.
UsedRows FindUsedRows(const Target& target) {
  const rh_trained_table& table = *target.trained;
  UsedRows used = {};
  if (table.type == RH_FLOAT32) {
    used.rows[used.num_rows++] = static_cast<const float*>(table.rows);
  } else {
    used.narrow_rows = static_cast<const char*>(table.rows);
  }
  for (int s = 0; s < rh_num_slots(target.constants.rule); ++s) {
    if (target.constants.rule == RH_ROWWISE_ADAGRAD) {
      used.numbers[used.num_numbers++] = reinterpret_cast<const char*>(table.slots[s]);
    } else {
      used.rows[used.num_rows++] = table.slots[s];
    }
  }
  if (target.constants.kind == RH_EXACT) {
    used.numbers[used.num_numbers++] = reinterpret_cast<const char*>(table.last_steps);
  }
  return used;
}

}  // namespace

Backward::Backward(const SortedIds& ids, Target* targets, Scratch* scratch, const rh_executor* executor)
    : ids_(ids),
      targets_(targets),
      executor_(executor),
      units_(scratch->Take<Units>(ids.num_tables())),
      long_sums_(scratch->Take<LongSum>(ids.num_long_runs())) {
  double cycles = 0;
  for (int32_t t = 0; t < ids.num_tables(); ++t) {
    const TableIds& table = ids.table(t);
    units_[t] = {num_units_, (table.num_keys + kUnitKeys - 1) / kUnitKeys};
    num_units_ += units_[t].count;
    cycles += static_cast<double>(table.num_keys) * static_cast<double>(20 + table.dim);
  }
  first_row_ = scratch->Take<int64_t>(num_units_);
  cost_of_unit_ = static_cast<int64_t>(cycles / static_cast<double>(std::max<int64_t>(1, num_units_)));
  PlanLongRuns(scratch);
}

void Backward::PlanLongRuns(Scratch* scratch) {
  for (int64_t r = 0; r < ids_.num_long_runs(); ++r) {
    const LongRun& run = ids_.long_runs()[r];
    const int64_t dim = ids_.table(run.table).dim;
    long_sums_[r] = {scratch->Take<float>(NumChunks(run) * dim), nullptr, num_groups_};
    num_groups_ += NumGroups(run);
  }
}

int32_t Backward::TableOf(int64_t unit) const {
  const Units* units = std::upper_bound(units_, units_ + ids_.num_tables(), unit,
                                        [](int64_t value, const Units& table) { return value < table.first; });
  return static_cast<int32_t>(units - units_ - 1);
}

Backward::KeyRange Backward::RangeOf(int64_t unit, const TableIds& table) const {
  const int64_t first = (unit - units_[table.table].first) * kUnitKeys;
  const uint64_t* begin = table.keys + first;
  if (first > 0 && table.Id(begin[-1]) == table.Id(*begin)) begin = table.RunEnd(begin);
  return {begin, table.keys + std::min(first + kUnitKeys, table.num_keys)};
}

void Backward::CountRows() {
  ForEach(executor_, num_units_, 1, 2 * kUnitKeys, [&](int64_t unit) {
    const TableIds& table = ids_.table(TableOf(unit));
    const KeyRange range = RangeOf(unit, table);
    int64_t num_rows = range.begin < range.end ? 1 : 0;
    for (const uint64_t* key = range.begin + 1; key < range.end; ++key) {
      num_rows += table.Id(key[-1]) != table.Id(*key) ? 1 : 0;
    }
    first_row_[unit] = num_rows;
  });
  for (int32_t t = 0; t < ids_.num_tables(); ++t) {
    int64_t sum = 0;
    for (int64_t unit = units_[t].first; unit < units_[t].first + units_[t].count; ++unit) {
      sum += std::exchange(first_row_[unit], sum);
    }
    targets_[t].num_rows = sum;
  }
}

int64_t Backward::FindBadLastStep(int32_t t, const int32_t* last_steps, int64_t step) const {
  const TableIds& table = ids_.table(t);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first{kNone};
  ParallelFor(executor_, table.num_keys, 8, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = table.Id(table.keys[k]);
      if (0 <= last_steps[row] && last_steps[row] < step) continue;
      int64_t seen = first.load(std::memory_order_relaxed);
      while (row < seen && !first.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
      }
      return;
    }
  });
  return first == kNone ? -1 : first.load();
}

void Backward::Run() {
  // Long runs come first, so that they do not end last.
  ForEach(executor_, num_groups_ + num_units_, 1, cost_of_unit_, [&](int64_t work) {
    if (work < num_groups_) return CombineGroup(work);
    const int64_t unit = work - num_groups_;
    const TableIds& table = ids_.table(TableOf(unit));
    targets_[table.table].ids != nullptr ? WriteUnit(unit, table) : UpdateUnit(unit, table);
  });
  ForEach(executor_, ids_.num_long_runs(), 1, cost_of_unit_, [&](int64_t run) { FinishLongRun(run); });
}

void Backward::CombineGroup(int64_t group) {
  const LongSum* sum = std::upper_bound(long_sums_, long_sums_ + ids_.num_long_runs(), group,
                                        [](int64_t value, const LongSum& sum) { return value < sum.first_group; });
  --sum;
  const LongRun& run = ids_.long_runs()[sum - long_sums_];
  const TableIds& table = ids_.table(run.table);
  const int64_t begin = run.begin + (group - sum->first_group) * kLongRun;
  const int64_t end = std::min(begin + kLongRun, run.end);
  CombineChunks(table, table.keys + begin, table.keys + end,
                sum->chunks + (group - sum->first_group) * kGroupChunks * table.dim);
}

int64_t Backward::FindLongRun(const TableIds& table, const uint64_t* key) const {
  const LongRun wanted{table.table, key - table.keys, 0};
  const LongRun* runs = ids_.long_runs();
  return std::lower_bound(runs, runs + ids_.num_long_runs(), wanted,
                          [](const LongRun& a, const LongRun& b) {
                            return a.table != b.table ? a.table < b.table : a.begin < b.begin;
                          }) -
         runs;
}

void Backward::WriteUnit(int64_t unit, const TableIds& table) {
  const Target& target = targets_[table.table];
  int64_t row = first_row_[unit];
  for (KeyRange range = RangeOf(unit, table); range.begin < range.end;) {
    row += CombineRuns(table, nullptr, &range.begin, range.end, std::numeric_limits<int64_t>::max(), target.ids + row,
                       target.rows + row * table.dim);
    if (range.begin >= range.end) break;
    target.ids[row] = table.Id(*range.begin);
    long_sums_[FindLongRun(table, range.begin)].row = target.rows + row * table.dim;
    range.begin = table.RunEnd(range.begin);
    ++row;
  }
}

void Backward::UpdateUnit(int64_t unit, const TableIds& table) {
  const Target& target = targets_[table.table];
  const int64_t max_rows = Block::MaxRows(table.dim);
  const UsedRows used = FindUsedRows(target);
  Block block;
  for (KeyRange range = RangeOf(unit, table); range.begin < range.end;) {
    const int64_t num_rows = CombineRuns(table, &used, &range.begin, range.end, max_rows, block.ids, block.rows);
    UpdateRows(target.constants, *target.trained, block.ids, block.rows, num_rows);
    // It may be a long run that ended the block.
    if (num_rows < max_rows && range.begin < range.end) range.begin = table.RunEnd(range.begin);
  }
}

void Backward::FinishLongRun(int64_t r) {
  const LongRun& run = ids_.long_runs()[r];
  const TableIds& table = ids_.table(run.table);
  const Target& target = targets_[run.table];
  float* sum = long_sums_[r].chunks;
  for (int64_t chunk = 1; chunk < NumChunks(run); ++chunk) {
    const float* next = sum + chunk * table.dim;
    for (int64_t d = 0; d < table.dim; ++d) sum[d] += next[d];
  }
  if (target.ids != nullptr) {
    std::memcpy(long_sums_[r].row, sum, table.dim * sizeof(float));
  } else {
    const int64_t id = table.Id(table.keys[run.begin]);
    UpdateRows(target.constants, *target.trained, &id, sum, 1);
  }
}

}  // namespace rankhouse
