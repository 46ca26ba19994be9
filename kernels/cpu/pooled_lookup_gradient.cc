// The backward of pooled lookup on the CPU. Tables of which a thread can have several add each id's gradient to its
// row's sum (cpu/direct_sums.h); the ids of others are sorted, and the gradients of each run of equal ones added up
// (cpu/sorted_ids.h, cpu/backward.h).
#include <algorithm>

#include "core/lookup.h"
#include "core/status.h"
#include "cpu/direct_sums.h"

namespace rankhouse {
namespace {

void CheckGradient(const Lookup& lookup, int32_t t, int64_t num_ids, const rh_sparse_gradient& gradient) {
  const int64_t needed = std::min(num_ids, lookup.table(t).num_rows);
  Require(gradient.capacity >= needed, "the gradient of table ", t, " has capacity ", gradient.capacity,
          ": expected at least ", needed, " (see rh_gradient_capacity)");
  Require(needed == 0 || (gradient.ids != nullptr && gradient.rows != nullptr), "the gradient of table ", t,
          " has NULL ids or rows");
}

void PooledLookupGradient(const rh_lookup* raw, const rh_feature_rows* grad, rh_sparse_gradient* gradients,
                          const rh_executor* executor) {
  const Lookup lookup(raw);
  const int32_t num_tables = lookup.num_tables();
  Require(num_tables == 0 || gradients != nullptr, "gradients is NULL");
  lookup.CheckFeatureRows(grad, "grad");
  Scratch scratch(executor);
  SortedIds ids(lookup, grad, &scratch, executor);
  DirectSums direct(lookup, grad, ids, &scratch, executor);
  Target* targets = scratch.Take<Target>(num_tables);
  for (int32_t t = 0; t < num_tables; ++t) {
    CheckGradient(lookup, t, ids.table(t).num_ids, gradients[t]);
    targets[t] = {gradients[t].ids, gradients[t].rows, 0, nullptr, {}};
  }
  direct.FindRows(ids.fault());
  ids.Sort(executor);
  Backward backward(ids, targets, &scratch, executor);
  backward.CountRows();
  direct.CountRows(targets);
  direct.Run(targets, &scratch);
  backward.Run();
  for (int32_t t = 0; t < num_tables; ++t) gradients[t].num_rows = targets[t].num_rows;
}

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
  return rankhouse::Guard([&] { rankhouse::PooledLookupGradient(lookup, grad, gradients, executor); });
}
