// Each row belongs to one group of threads (or one thread), and rows are touched once, so nobody else reads or writes
// it and the result is always the same bits. Bytes moved: see rh_apply.
#include "cuda/touched_rows.cuh"

namespace rankhouse {
namespace {

struct DeviceTables {
  const TouchedRows* tables;
  int32_t num_tables;
  Stops stops;

  // The table that a block works on.
  __device__ int32_t Table(BlockShare share) const {
    return LastNotAbove(num_tables, int64_t{blockIdx.x},
                        [this, share](int32_t t) { return tables[t].first_blocks[share]; });
  }
};

// The number of a group among those of its table.
__device__ int64_t IndexOf(const Group& group, const TouchedRows& rows, BlockShare share) {
  return (blockIdx.x - rows.first_blocks[share]) * group.per_block() + group.index();
}

__device__ int64_t ThreadOf(const TouchedRows& rows) {
  return (blockIdx.x - rows.first_blocks[kThreadPerTouched]) * kBlockThreads + threadIdx.x;
}

__global__ void CheckIdsOf(const __grid_constant__ DeviceTables all, Fault* fault) {
  const int32_t t = all.Table(kThreadPerTouched);
  const TouchedRows& rows = all.tables[t];
  const int64_t k = ThreadOf(rows);
  if (k >= rows.Count() || rows.ids == nullptr) return;
  const int64_t id = rows.Row(k);
  const int64_t previous = k == 0 ? -1 : rows.Row(k - 1);
  if (id <= previous || id >= rows.trained.table.num_rows) {
    atomicMin(fault, static_cast<Fault>(t) << kPositionBits | static_cast<Fault>(k));
  }
}

__global__ void CheckLastStepsOf(const __grid_constant__ DeviceTables all, LastStepReport report) {
  const int32_t t = all.Table(kThreadPerTouched);
  const TouchedRows& rows = all.tables[t];
  const int64_t k = ThreadOf(rows);
  if (rows.trained.constants.kind != RH_EXACT || k >= rows.Count() || all.stops.Any()) return;
  const int64_t row = rows.Row(k);
  const int32_t last_step = rows.trained.table.last_steps[row];
  if (last_step >= 0 && last_step <= rows.most_last_step) return;
  const Fault position = report.rows != nullptr ? Fault{0} : static_cast<Fault>(k);
  atomicMin(report.first,
            report.rows != nullptr ? static_cast<Fault>(t) : static_cast<Fault>(t) << kPositionBits | position);
  if (report.rows != nullptr) atomicMin(&report.rows[t].row, static_cast<Fault>(row));
}

// Makes the missed steps of neighbouring columns that start at `at` in the table.
template <int kColumns>
__device__ void CatchUpColumns(const DeviceTrained& trained, int64_t at, int64_t last_step, int64_t until) {
  using Part = Columns<kColumns>;
  const rh_trained_table& table = trained.table;
  const UpdateConstants& c = trained.constants;
  Part w = LoadWeights<kColumns>(table, at);
  Part a = *reinterpret_cast<const Part*>(table.slots[0] + at);
  if (c.rule == RH_MOMENTUM) {
    const MomentumCatchUp missed = MomentumCatchUp::Make(c, until - last_step);
    for (int i = 0; i < kColumns; ++i) missed.Step(w.value[i], a.value[i]);
  } else {
    Part b = *reinterpret_cast<const Part*>(table.slots[1] + at);
    AdamCatchUp missed(c, last_step, until);
    AdamCatchUp::Stretch stretch;
    bool moves = false;  // where there is no momentum all moves are 0
    for (int i = 0; i < kColumns; ++i) moves = moves || a.value[i] != 0.0f;
    while (moves && missed.Next(&stretch)) {
      for (int i = 0; i < kColumns; ++i) {
        w.value[i] -= stretch.Move(a.value[i], std::sqrt(b.value[i]), c.epsilon);
      }
    }
    for (int i = 0; i < kColumns; ++i) {
      a.value[i] *= missed.slot_factor_a;
      b.value[i] *= missed.slot_factor_b;
    }
    *reinterpret_cast<Part*>(table.slots[1] + at) = b;
  }
  StoreWeights(table, at, RoundingSeed(until), w);
  *reinterpret_cast<Part*>(table.slots[0] + at) = a;
}

template <int kColumns>
__global__ void CatchUpRows(const __grid_constant__ DeviceTables all, int64_t steps_back) {
  const TouchedRows& rows = all.tables[all.Table(kGroupPerTouched)];
  const Group group(rows.lanes);
  const int64_t k = IndexOf(group, rows, kGroupPerTouched);
  const UpdateConstants& c = rows.trained.constants;
  if (c.kind != RH_EXACT || rows.columns != kColumns || k >= rows.Count() || all.stops.Any()) return;
  const int64_t row = rows.Row(k);
  const int64_t last_step = rows.trained.table.last_steps[row];
  const int64_t until = c.step - steps_back;
  const int64_t dim = rows.trained.table.dim;
  if (last_step >= until) return;
  for (int64_t column = group.lane * kColumns; column < dim; column += group.lanes * kColumns) {
    CatchUpColumns<kColumns>(rows.trained, row * dim + column, last_step, until);
  }
  __syncwarp(group.mask);  // all have read the last step
  if (group.lane == 0) rows.trained.table.last_steps[row] = static_cast<int32_t>(until);
}

template <int kColumns>
__device__ void StepRowwise(const Group& group, const DeviceTrained& trained, int64_t row, const float* gradient) {
  using Part = Columns<kColumns>;
  const int64_t dim = trained.table.dim;
  RowwiseStep<kColumns> step;
  for (int64_t base = 0; base < dim; base += group.lanes * kColumns) {
    const int64_t column = base + group.lane * kColumns;
    Part part = {};
    if (column < dim) part = *reinterpret_cast<const Part*>(gradient + column);
    step.AddSquares(group, trained, row * dim + column, part, column < dim);
  }
  const float factor = step.Factor(group, trained, row);
  for (int64_t column = group.lane * kColumns; column < dim; column += group.lanes * kColumns) {
    const Part part = *reinterpret_cast<const Part*>(gradient + column);
    RowwiseStep<kColumns>::Step(trained, row * dim + column, factor, part);
  }
}

template <int kColumns>
__global__ void StepRows(const __grid_constant__ DeviceTables all) {
  using Part = Columns<kColumns>;
  const TouchedRows& rows = all.tables[all.Table(kGroupPerTouched)];
  const Group group(rows.lanes);
  const int64_t k = IndexOf(group, rows, kGroupPerTouched);
  if (rows.columns != kColumns || k >= rows.Count() || all.stops.Any()) return;
  const int64_t dim = rows.trained.table.dim;
  const int64_t row = rows.Row(k);
  const float* gradient = rows.gradient + k * dim;
  if (rows.trained.constants.rule == RH_ROWWISE_ADAGRAD) {
    return StepRowwise<kColumns>(group, rows.trained, row, gradient);
  }
  for (int64_t column = group.lane * kColumns; column < dim; column += group.lanes * kColumns) {
    StepColumns(rows.trained, row * dim + column, *reinterpret_cast<const Part*>(gradient + column));
  }
  if (rows.trained.constants.kind == RH_EXACT && group.lane == 0) {
    rows.trained.table.last_steps[row] = static_cast<int32_t>(rows.trained.constants.step);
  }
}

__device__ bool IsTouched(const TouchedRows& rows, int64_t row) {
  int64_t low = 0;
  for (int64_t high = rows.Count(); low < high;) {
    const int64_t middle = (low + high) / 2;
    const int64_t id = rows.Row(middle);
    if (id == row) return true;
    if (id < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return false;
}

template <int kColumns>
__global__ void MoveRows(const __grid_constant__ DeviceTables all) {
  const TouchedRows& rows = all.tables[all.Table(kGroupPerRow)];
  const Group group(rows.lanes);
  const int64_t row = IndexOf(group, rows, kGroupPerRow);
  const UpdateConstants& c = rows.trained.constants;
  const rh_trained_table& table = rows.trained.table;
  if (c.kind != RH_DENSE || rows.columns != kColumns || row >= table.num_rows || all.stops.Any()) return;
  if (IsTouched(rows, row)) return;
  for (int64_t column = group.lane * kColumns; column < table.dim; column += group.lanes * kColumns) {
    const int64_t at = row * table.dim + column;
    c.rule == RH_MOMENTUM ? StepBy<MomentumRule, false>(rows.trained, at, Columns<kColumns>{})
                          : StepBy<AdamRule, false>(rows.trained, at, Columns<kColumns>{});
  }
}

// Launches `by_four` for the tables whose rows allow it, and `by_one` for the others.
template <typename... Parameters, typename... Arguments>
void LaunchBoth(const std::vector<TouchedRows>& tables, void (*by_four)(Parameters...), void (*by_one)(Parameters...),
                int64_t num_blocks, cudaStream_t stream, Arguments... arguments) {
  for (const int columns : {4, 1}) {
    const bool any =
        std::any_of(tables.begin(), tables.end(), [&](const TouchedRows& rows) { return rows.columns == columns; });
    if (any) Launch(columns == 4 ? by_four : by_one, num_blocks, stream, arguments...);
  }
}

}  // namespace

TouchedTables::TouchedTables(std::vector<TouchedRows> host, TouchedRows* device, cudaStream_t stream)
    : host_(std::move(host)), device_(device), num_blocks_{} {
  for (TouchedRows& rows : host_) {
    const rh_trained_table& table = rows.trained.table;
    const bool by_four = ByFour(table, NumElementSlots(rows.trained.constants.rule)) && IsAligned(rows.gradient, 16);
    rows.columns = by_four ? 4 : 1;
    rows.lanes = LanesPerRow(table.dim, rows.columns);
    const int64_t groups = kBlockThreads / rows.lanes;
    const int64_t counts[] = {DivideUp(rows.num_ids, kBlockThreads), DivideUp(rows.num_ids, groups),
                              rows.trained.constants.kind == RH_DENSE ? DivideUp(table.num_rows, groups) : 0};
    for (int share = 0; share < kNumBlockShares; ++share) {
      rows.first_blocks[share] = num_blocks_[share];
      num_blocks_[share] += counts[share];
    }
  }
  Upload(device_, host_, stream);
}

bool TouchedTables::Has(rh_update_kind kind) const {
  return std::any_of(host_.begin(), host_.end(),
                     [&](const TouchedRows& rows) { return rows.trained.constants.kind == kind; });
}

void TouchedTables::CheckIds(Fault* fault, cudaStream_t stream) const {
  const DeviceTables all = {device_, static_cast<int32_t>(host_.size()), {nullptr, 0}};
  Launch(CheckIdsOf, num_blocks_[kThreadPerTouched], stream, all, fault);
}

void TouchedTables::CheckLastSteps(LastStepReport report, Stops stops, cudaStream_t stream) const {
  if (!Has(RH_EXACT)) return;
  const DeviceTables all = {device_, static_cast<int32_t>(host_.size()), stops};
  Launch(CheckLastStepsOf, num_blocks_[kThreadPerTouched], stream, all, report);
}

void TouchedTables::CatchUp(int64_t steps_back, Stops stops, cudaStream_t stream) const {
  if (!Has(RH_EXACT)) return;
  const DeviceTables all = {device_, static_cast<int32_t>(host_.size()), stops};
  LaunchBoth(host_, CatchUpRows<4>, CatchUpRows<1>, num_blocks_[kGroupPerTouched], stream, all, steps_back);
}

void TouchedTables::Step(Stops stops, cudaStream_t stream) const {
  const DeviceTables all = {device_, static_cast<int32_t>(host_.size()), stops};
  LaunchBoth(host_, StepRows<4>, StepRows<1>, num_blocks_[kGroupPerTouched], stream, all);
}

void TouchedTables::MoveUntouched(Stops stops, cudaStream_t stream) const {
  if (!Has(RH_DENSE)) return;
  const DeviceTables all = {device_, static_cast<int32_t>(host_.size()), stops};
  LaunchBoth(host_, MoveRows<4>, MoveRows<1>, num_blocks_[kGroupPerRow], stream, all);
}

}  // namespace rankhouse
