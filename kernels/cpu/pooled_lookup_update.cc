// The backward of pooled lookup fused with the optimizer, on the CPU: each row is updated as soon as its gradient is
// known, so that no gradient is written to memory.
//
// Two cases need all of a table's gradients first, and write them to scratch: RH_DENSE, which moves all other rows too,
// and rows wider than kMaxFusedDim.
#include <algorithm>

#include "core/lookup.h"
#include "core/status.h"
#include "core/update.h"
#include "cpu/apply.h"
#include "cpu/direct_sums.h"

namespace rankhouse {
namespace {

class PooledLookupUpdate {
 public:
  // Checks all but ids and bags. Throws Error.
  PooledLookupUpdate(const Lookup& lookup, const rh_optimizer* optimizers, const rh_trained_table* tables)
      : lookup_(lookup), optimizers_(optimizers), tables_(tables) {
    Require(lookup.num_tables() == 0 || (optimizers != nullptr && tables != nullptr), "optimizers or tables is NULL");
    for (int32_t t = 0; t < lookup.num_tables(); ++t) CheckTable(t);
  }

  void Run(const rh_feature_rows* grad, const rh_executor* executor) {
    Scratch scratch(executor);
    SortedIds ids(lookup_, grad, &scratch, executor);
    DirectSums direct(lookup_, grad, ids, &scratch, executor);
    direct.FindRows(ids.fault());
    ids.Sort(executor);
    Target* targets = scratch.Take<Target>(lookup_.num_tables());
    bool fused = true;
    for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
      targets[t] = {nullptr, nullptr, 0, &tables_[t], MakeUpdateConstants(optimizers_[t])};
      fused &= IsFused(t);
    }
    Backward backward(ids, targets, &scratch, executor);
    CheckLastSteps(backward, direct);
    if (!fused) {
      backward.CountRows();
      direct.CountRows(targets);
      for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
        if (IsFused(t)) continue;
        targets[t].ids = scratch.Take<int64_t>(targets[t].num_rows);
        targets[t].rows = scratch.Take<float>(targets[t].num_rows * tables_[t].dim);
      }
    }
    direct.Run(targets, &scratch);
    backward.Run();
    for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
      if (IsFused(t)) continue;
      ApplyUpdate({tables_[t], &optimizers_[t], targets[t].ids, targets[t].rows, nullptr, targets[t].num_rows},
                  executor);
    }
  }

 private:
  bool IsFused(int32_t t) const { return optimizers_[t].kind != RH_DENSE && tables_[t].dim <= kMaxFusedDim; }

  void CheckTable(int32_t t) const {
    const rh_table& table = lookup_.table(t);
    const rh_trained_table& trained = tables_[t];
    Require(trained.num_rows == table.num_rows && trained.dim == table.dim, "table ", t, " that is trained has shape [",
            trained.num_rows, ", ", trained.dim, "]: expected that of the lookup's table, [", table.num_rows, ", ",
            table.dim, "]");
    CheckOptimizer(optimizers_[t], t);
    bool updated = optimizers_[t].kind == RH_DENSE && table.num_rows > 0;
    for (const Feature& feature : lookup_.features())
      updated |= feature.table == t && feature.first_id < feature.last_id;
    CheckTrainedTable(trained, optimizers_[t], t, updated);
  }

  // RH_EXACT: that no row is ahead of this step.
  void CheckLastSteps(const Backward& backward, const DirectSums& direct) const {
    for (int32_t t = 0; t < lookup_.num_tables(); ++t) {
      if (optimizers_[t].kind != RH_EXACT || tables_[t].last_steps == nullptr) continue;
      const int64_t step = optimizers_[t].step;
      const int64_t row = std::max(backward.FindBadLastStep(t, tables_[t].last_steps, step),
                                   direct.FindBadLastStep(t, tables_[t].last_steps, step));
      if (row < 0) continue;
      rh_update update = {};
      update.optimizer = &optimizers_[t];
      ThrowLastStepFault(update, t, row, tables_[t].last_steps[row]);
    }
  }

  const Lookup& lookup_;
  const rh_optimizer* optimizers_;
  const rh_trained_table* tables_;
};

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_update(const rh_lookup* lookup, const rh_feature_rows* grad, const rh_optimizer* optimizers,
                            const rh_trained_table* tables, const rh_executor* executor) {
  return rankhouse::Guard([&] {
    const rankhouse::Lookup checked(lookup);
    checked.CheckFeatureRows(grad, "grad");
    rankhouse::PooledLookupUpdate(checked, optimizers, tables).Run(grad, executor);
  });
}
