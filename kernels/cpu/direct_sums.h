// Gradients of tables without sorting their ids, for batches of which a thread can have whole tables: it knows the
// place of each touched row among the others (cpu/touched_rows.h), and adds the contributions there one by one
// (cpu/row_sums.h). Sums and their order are those of the sorted way (cpu/backward.h), so no bit depends on which is
// taken. Bytes: 8 per id read twice, grad read once in order, U * D * 4 read and written at random, mostly in a cache.
#ifndef RANKHOUSE_CPU_DIRECT_SUMS_H_
#define RANKHOUSE_CPU_DIRECT_SUMS_H_

#include <cstdint>

#include "cpu/backward.h"
#include "cpu/row_sums.h"
#include "cpu/touched_rows.h"

namespace rankhouse {

class DirectSums {
 public:
  // Of the tables that `ids` does not sort. Takes memory. Throws Error.
  DirectSums(const Lookup& lookup, const rh_feature_rows* grad, const SortedIds& ids, Scratch* scratch,
             const rh_executor* executor);

  // Checks bags and ids, and finds the touched rows. Reports the bags that are wrong.
  void FindRows(FirstFault* fault);

  // The next three need good bags, after FindRows.

  // Sets num_rows of these tables' targets.
  void CountRows(Target* targets) const;

  // As Backward::FindBadLastStep. -1 for the tables of others.
  int64_t FindBadLastStep(int32_t t, const int32_t* last_steps, int64_t step) const;

  // Writes or updates the rows. Those targets that are written need their ids and rows. Takes memory.
  void Run(const Target* targets, Scratch* scratch);

 private:
  struct Table {
    const TableIds* ids;
    TouchedRows touched;
    int64_t num_rows;  // touched
    int64_t* row_ids;  // [num_rows]
    RowSums sums;
  };

  // Tables that one thread has, together: several where each has one feature, and all their sums fit in its cache.
  struct Group {
    Table* begin;
    Table* end;
    int64_t num_ids;
  };

  void MakeGroups(Scratch* scratch);
  void FindRowsOf(Table* table, FirstFault* fault) const;
  template <typename Id>
  void Touch(const Feature& feature, const TouchedRows& touched, FirstFault* fault) const;
  void RunGroup(const Group& group, const Target* targets) const;

  const Lookup& lookup_;
  const rh_feature_rows* grad_;
  const rh_executor* executor_;
  Table* tables_;
  int64_t num_tables_ = 0;
  Group* groups_;  // those with most ids first, so that they do not end last
  int64_t num_groups_ = 0;
  int64_t ids_of_group_ = 0;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_DIRECT_SUMS_H_
