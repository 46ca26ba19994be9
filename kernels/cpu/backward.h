// From the sorted ids of a batch to the gradients of rows, written out or used at once for the rows' update. Tables
// that need no sort are left to cpu/direct_sums.h.
//
// A unit of work is some thousand sorted keys: a thread that owns one owns the runs of equal ids that begin in it, and
// so their rows. Long runs are shared chunk by chunk, and their chunks' sums added afterwards. Each row has one order
// of sums, so threads cannot change a bit of it. Bytes: 8 per id, N * D * 4 of grad read at random (prefetched), and
// the rows written or updated.
#ifndef RANKHOUSE_CPU_BACKWARD_H_
#define RANKHOUSE_CPU_BACKWARD_H_

#include <atomic>
#include <cstdint>
#include <limits>

#include "core/update_rules.h"
#include "cpu/scratch.h"
#include "cpu/sorted_ids.h"

namespace rankhouse {

// What the gradients of one table are for.
struct Target {
  // Where they are written; NULL where each row is updated as soon as its gradient is known.
  int64_t* ids;
  float* rows;
  int64_t num_rows;  // set by CountRows
  // The table that is updated; NULL where none is.
  const rh_trained_table* trained;
  UpdateConstants constants;
};

// Rows that are wider are never updated at once: blocks of gradients lie on the stack.
constexpr int64_t kMaxFusedDim = 4096;

class Backward {
 public:
  // targets [T]. `ids` are sorted. Takes memory. Throws Error.
  Backward(const SortedIds& ids, Target* targets, Scratch* scratch, const rh_executor* executor);

  // Sets num_rows of the targets, and by it where units write.
  void CountRows();

  // Returns the first of a table's rows, if any, whose last step is not below `step` or is negative; else -1.
  int64_t FindBadLastStep(int32_t t, const int32_t* last_steps, int64_t step) const;

  // Writes or updates the rows. The targets that are written need their ids and rows, and CountRows.
  void Run();

 private:
  struct Units {
    int64_t first;  // among those of all tables
    int64_t count;
  };
  // The keys of one table that a unit looks at.
  struct KeyRange {
    const uint64_t* begin;  // of the first run that begins in the unit
    const uint64_t* end;    // of the unit
  };
  // Where the chunks' sums of a long run lie, and where its gradient goes.
  struct LongSum {
    float* chunks;
    float* row;
    int64_t first_group;  // of chunks, among those of all long runs
  };

  int32_t TableOf(int64_t unit) const;
  KeyRange RangeOf(int64_t unit, const TableIds& table) const;
  int64_t FindLongRun(const TableIds& table, const uint64_t* key) const;
  void PlanLongRuns(Scratch* scratch);
  void CombineGroup(int64_t group);
  void WriteUnit(int64_t unit, const TableIds& table);
  void UpdateUnit(int64_t unit, const TableIds& table);
  void FinishLongRun(int64_t run);

  const SortedIds& ids_;
  Target* targets_;
  const rh_executor* executor_;
  Units* units_;        // [T]
  int64_t* first_row_;  // [units] where a unit's first row lies among those of its table
  LongSum* long_sums_;
  int64_t num_units_ = 0;
  int64_t num_groups_ = 0;
  int64_t cost_of_unit_ = 0;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_BACKWARD_H_
