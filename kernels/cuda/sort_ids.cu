// The first half of a backward: keys, sort and runs (cuda/backward.cuh).
#include "core/sort_key.h"
#include "cuda/backward.cuh"

namespace rankhouse {
namespace {

// Positions in windows of one chunk; see SumChunks.
int64_t NumWindows(int64_t num_ids) { return DivideUp(num_ids, RH_GRADIENT_CHUNK); }

// True where more than a bag's rows decides about a contribution, so that keys must lead to positions.
bool ByPosition(const Lookup& lookup) {
  const auto& features = lookup.features();
  return lookup.weights() != nullptr ||
         std::any_of(features.begin(), features.end(), [](const Feature& f) { return f.combiner == RH_NONE; });
}

uint64_t EndKey(const Lookup& lookup) {
  uint64_t end_key = 0;
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    end_key += static_cast<uint64_t>(lookup.table(t).num_rows);
    Require(end_key < uint64_t{1} << 62, "the tables have more than 2^62 rows together: split the call");
  }
  return end_key;
}

struct KeyTarget {
  const BackwardTable* tables;
  void* keys;
  int32_t* values;
  int32_t* bags;
  float* scales;
  uint64_t end_key;
  int32_t wide;
  int32_t by_position;

  __device__ void SetKey(int64_t n, uint64_t key) const {
    if (wide) {
      static_cast<uint64_t*>(keys)[n] = key;
    } else {
      static_cast<uint32_t*>(keys)[n] = static_cast<uint32_t>(key);
    }
  }
};

// What the bag's contributions are multiplied with.
__device__ float ScaleOf(const DeviceLookup& lookup, const Feature& feature, const Bag& bag) {
  float weight_sum = DeviceLookup::kNoWeights;
  if (lookup.DividesByWeights(feature.combiner)) {
    for (int64_t n = bag.begin; n < bag.end; ++n) {
      weight_sum = DeviceLookup::AddWeight(feature.combiner, weight_sum, lookup.weights[n]);
    }
  }
  return lookup.Scale(feature.combiner, bag.end - bag.begin, weight_sum);
}

// A block owns kBlockThreads bags: first a thread each, then a thread takes every kBlockThreads-th of their ids, which
// lie side by side.
__global__ void MakeKeys(const __grid_constant__ DeviceLookup lookup, const __grid_constant__ KeyTarget target) {
  __shared__ int64_t begins[kBlockThreads + 1];
  if (GlobalThread() == 0) lookup.CheckEnds();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockThreads;
  const int count = static_cast<int>(min(static_cast<int64_t>(kBlockThreads), lookup.num_bags - first));
  const int i = static_cast<int>(threadIdx.x);
  bool bad = false;
  if (i < count) {
    const int64_t f = (first + i) / lookup.batch_size;
    const Feature& feature = lookup.features[f].feature;
    const Bag bag = lookup.bag(feature, first + i, first + i - f * lookup.batch_size);
    bad = !bag.Within(feature);
    if (bad) lookup.ReportBag(first + i);
    if (!bad) target.scales[first + i] = ScaleOf(lookup, feature, bag);
    begins[i] = bag.begin;
    if (i == count - 1) begins[count] = bag.end;
  }
  if (__syncthreads_or(bad)) return;
  for (int64_t n = begins[0] + i; n < begins[count]; n += kBlockThreads) {
    const int64_t bag = first + LastNotAbove(begins, count, n);
    const Feature& feature = lookup.features[bag / lookup.batch_size].feature;
    const int64_t row = feature.Row(lookup.id(n));
    if (row == kFault) lookup.ReportBag(bag);
    target.SetKey(n, row >= 0 ? static_cast<uint64_t>(target.tables[feature.table].first_key + row) : target.end_key);
    target.values[n] = static_cast<int32_t>(target.by_position ? n : bag);
    if (target.by_position) target.bags[n] = static_cast<int32_t>(bag);
  }
}

struct RunPlan {
  int32_t* run_starts;
  const int32_t* num_runs;
  int32_t* first_runs;
  int32_t* first_items;
  int64_t* num_rows;
};

// The first of `count` sorted keys that is not below `key`. At(i) is key i.
template <typename At>
__device__ int32_t LowerBound(int32_t count, uint64_t key, At at) {
  int32_t low = 0;
  for (int32_t high = count; low < high;) {
    const int32_t middle = low + (high - low) / 2;
    if (at(middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// One block: which runs and work items are each table's. Nothing is left to do where something was wrong.
__global__ void PlanRuns(const __grid_constant__ Backward backward, RunPlan plan) {
  const bool failed = backward.lookup.Failed();
  const int32_t num_runs = failed ? 0 : *plan.num_runs;
  for (int32_t t = threadIdx.x; t <= backward.num_tables; t += kBlockThreads) {
    const uint64_t key = t < backward.num_tables ? backward.tables[t].first_key : backward.end_key;
    plan.first_runs[t] = LowerBound(num_runs, key, [&](int32_t r) { return backward.keys[plan.run_starts[r]]; });
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  plan.run_starts[num_runs] =
      failed ? 0 : LowerBound(backward.num_ids, backward.end_key, [&](int32_t n) { return backward.keys[n]; });
  int32_t items = 0;
  for (int32_t t = 0; t < backward.num_tables; ++t) {
    const BackwardTable& table = backward.tables[t];
    const int32_t runs = plan.first_runs[t + 1] - plan.first_runs[t];
    const int32_t runs_per_item = kBlockThreads / table.lanes * kRunsPerGroup;
    plan.num_rows[t] = runs;
    plan.first_items[t] = items;
    items += (runs + runs_per_item - 1) / runs_per_item;
    if (table.ids != nullptr && runs > table.capacity) {
      atomicMin(&backward.lookup.faults[kSmallCapacity], static_cast<Fault>(t));
    }
  }
  plan.first_items[backward.num_tables] = items;
}

// Sets how threads share the rows of each table.
void ShareRows(const Lookup& lookup, const rh_feature_rows* grad, std::vector<BackwardTable>* tables) {
  for (BackwardTable& table : *tables) {
    const DeviceTrained& trained = table.trained;
    const bool updates = table.ids == nullptr;
    const bool by_four =
        updates ? ByFour(trained.table, NumElementSlots(trained.constants.rule)) : ByFour(table.rows, 0, table.dim);
    table.columns = by_four && table.dim % 4 == 0 ? 4 : 1;
  }
  for (size_t f = 0; f < lookup.features().size(); ++f) {
    const Feature& feature = lookup.features()[f];
    if (!ByFour(grad[f].data, grad[f].stride, feature.dim)) (*tables)[feature.table].columns = 1;
  }
  for (BackwardTable& table : *tables) table.lanes = LanesPerRow(table.dim, table.columns);
}

}  // namespace

BackwardWorkspace::BackwardWorkspace(Workspace* workspace, const Lookup& checked)
    : lookup(workspace, checked),
      num_windows(NumWindows(checked.num_ids())),
      partial_stride(0),
      end_key(EndKey(checked)),
      tables(workspace->Take<BackwardTable>(checked.num_tables())),
      bags(workspace->Take<int32_t>(checked.num_ids())),
      scales(workspace->Take<float>(static_cast<int64_t>(checked.features().size()) * checked.batch_size())),
      run_starts(workspace->Take<int32_t>(checked.num_ids() + 1)),
      num_runs(workspace->Take<int32_t>(1)),
      first_runs(workspace->Take<int32_t>(checked.num_tables() + 1)),
      first_items(workspace->Take<int32_t>(checked.num_tables() + 1)),
      partials(nullptr),
      sort(workspace, checked.num_ids(), BitWidth(static_cast<int64_t>(end_key) + 1) > 32) {
  for (int32_t t = 0; t < checked.num_tables(); ++t) {
    partial_stride = std::max(partial_stride, DivideUp(checked.table(t).dim, 4) * 4);
  }
  partials = workspace->Take<float>(checked.num_ids() <= RH_GRADIENT_CHUNK ? 0 : 2 * num_windows * partial_stride);
}

Backward SortIds(const Lookup& lookup, const rh_feature_rows* grad, std::vector<BackwardTable> tables,
                 BackwardWorkspace* parts, int64_t* num_rows, cudaStream_t stream) {
  const int64_t num_bags = static_cast<int64_t>(lookup.features().size()) * lookup.batch_size();
  Require(num_bags <= std::numeric_limits<int32_t>::max(), "there are ", num_bags,
          " bags: expected less than 2^31 in one call on a GPU");
  int64_t first_key = 0;
  for (BackwardTable& table : tables) {
    table.first_key = first_key;
    first_key += table.num_rows;
  }
  ShareRows(lookup, grad, &tables);
  const DeviceLookup device = parts->lookup.Fill(lookup, MakeDeviceFeatures(lookup, grad), stream);
  Upload(parts->tables, tables, stream);
  SortBuffers& sort = parts->sort;
  const int32_t by_position = ByPosition(lookup) ? 1 : 0;
  const KeyTarget target = {parts->tables, sort.keys[0],   sort.values[0],    parts->bags,
                            parts->scales, parts->end_key, sort.wide ? 1 : 0, by_position};
  Launch(MakeKeys, DivideUp(num_bags, kBlockThreads), stream, device, target);
  sort.Sort(BitWidth(static_cast<int64_t>(parts->end_key) + 1), stream);
  sort.CutRuns(parts->end_key, parts->run_starts, parts->num_runs, stream);
  const Backward backward = {device,
                             parts->tables,
                             sort.sorted(),
                             sort.values[0],
                             parts->bags,
                             parts->scales,
                             parts->run_starts,
                             parts->first_runs,
                             parts->first_items,
                             parts->partials,
                             parts->partial_stride,
                             parts->end_key,
                             static_cast<int32_t>(lookup.num_ids()),
                             lookup.num_tables(),
                             by_position};
  const RunPlan plan = {parts->run_starts, parts->num_runs, parts->first_runs, parts->first_items, num_rows};
  Launch(PlanRuns, 1, stream, backward, plan);
  return backward;
}

}  // namespace rankhouse
