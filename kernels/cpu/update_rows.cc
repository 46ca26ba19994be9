#include "cpu/update_rows.h"

#include <algorithm>

namespace rankhouse {
namespace {

// Rows are worked on in blocks of this many columns, which fill the widest vector register.
constexpr int64_t kBlock = 16;

// A row and its slots; a slot that the rule does not have is never used.
struct TrainedRow {
  float* __restrict w;
  float* __restrict a;
  float* __restrict b;
};

RH_INLINE TrainedRow RowOf(const rh_trained_table& table, int64_t row, int num_slots) {
  const int64_t at = row * table.dim;
  return {table.rows + at, num_slots > 0 ? table.slots[0] + at : nullptr,
          num_slots > 1 ? table.slots[1] + at : nullptr};
}

// Loads and stores n <= kBlock columns; the rest is zeros.
RH_INLINE void LoadBlock(const float* from, int64_t n, float* block) {
  if (n == kBlock) {
    __builtin_memcpy(block, from, kBlock * sizeof(float));
  } else {
    for (int64_t d = 0; d < kBlock; ++d) block[d] = d < n ? from[d] : 0.0f;
  }
}

RH_INLINE void StoreBlock(const float* block, int64_t n, float* to) {
  if (n == kBlock) {
    __builtin_memcpy(to, block, kBlock * sizeof(float));
  } else {
    for (int64_t d = 0; d < n; ++d) to[d] = block[d];
  }
}

// One step of n columns from `first` on. kTouched: with a gradient; without one it is zero, and weights do not decay.
// It is made on copies, which nothing else can overlap, so that the compiler keeps each in a vector register.
template <typename Rule, bool kTouched>
RH_INLINE void StepColumns(const UpdateConstants& c, const float* gradient, const TrainedRow& row, int64_t first,
                           int64_t n) {
  float w[kBlock];
  float g[kBlock] = {};
  float a[kBlock] = {};
  float b[kBlock] = {};
  LoadBlock(row.w + first, n, w);
  if (kTouched) LoadBlock(gradient + first, n, g);
  if (Rule::kNumSlots > 0) LoadBlock(row.a + first, n, a);
  if (Rule::kNumSlots > 1) LoadBlock(row.b + first, n, b);
  for (int64_t d = 0; d < kBlock; ++d) {
    if (kTouched) {
      g[d] = PrepareGradient(c, g[d], w[d]);
      w[d] = DecayWeight(c, w[d]);
    }
    Rule::Step(c, g[d], w[d], a[d], b[d]);
  }
  StoreBlock(w, n, row.w + first);
  if (Rule::kNumSlots > 0) StoreBlock(a, n, row.a + first);
  if (Rule::kNumSlots > 1) StoreBlock(b, n, row.b + first);
}

template <typename Rule, bool kTouched>
RH_INLINE void StepRow(const UpdateConstants& c, const float* gradient, const TrainedRow& row, int64_t dim) {
  int64_t d = 0;
  for (; d + kBlock <= dim; d += kBlock) StepColumns<Rule, kTouched>(c, gradient, row, d, kBlock);
  if (d < dim) StepColumns<Rule, kTouched>(c, gradient, row, d, dim - d);
}

// A block of columns as one value: partial sums of it stay in a register.
typedef float Lanes __attribute__((vector_size(kBlock * sizeof(float))));

// The rest of a row is filled up with zeros, which change no sum.
RH_INLINE Lanes LoadLanes(const float* from, int64_t n) {
  Lanes lanes = {};
  if (n >= kBlock) {
    __builtin_memcpy(&lanes, from, sizeof(lanes));
  } else {
    __builtin_memcpy(&lanes, from, n * sizeof(float));
  }
  return lanes;
}

RH_INLINE void ScaleColumns(const UpdateConstants& c, float factor, const float* __restrict gradient,
                            float* __restrict w_block, int64_t n) {
  for (int64_t l = 0; l < n; ++l) {
    float w = w_block[l];
    const float g = PrepareGradient(c, gradient[l], w);
    w = DecayWeight(c, w);
    RowwiseAdagradRule::Step(factor, g, w);
    w_block[l] = w;
  }
}

RH_INLINE void StepRowwise(const UpdateConstants& c, const float* gradient, float* w, float* slot, int64_t dim) {
  static_assert(kBlock == RowwiseAdagradRule::kNumSums, "a block adds to every sum once");
  Lanes lanes = {};
  int64_t d = 0;
  for (; d < dim; d += kBlock) {
    const Lanes g = PrepareGradient(c, LoadLanes(gradient + d, dim - d), LoadLanes(w + d, dim - d));
    lanes += g * g;
  }
  float sums[kBlock];
  __builtin_memcpy(sums, &lanes, sizeof(sums));
  const float factor = RowwiseAdagradRule::StepSlot(c, RowwiseAdagradRule::Mean(sums, dim), *slot);
  d = 0;
  for (; d + kBlock <= dim; d += kBlock) ScaleColumns(c, factor, gradient + d, w + d, kBlock);
  if (d < dim) ScaleColumns(c, factor, gradient + d, w + d, dim - d);
}

RH_INLINE void CatchUpMomentum(const UpdateConstants& c, const TrainedRow& row, int64_t dim, int64_t num_missed) {
  const MomentumCatchUp missed = MomentumCatchUp::Make(c, num_missed);
  float* __restrict w = row.w;
  float* __restrict a = row.a;
  for (int64_t d = 0; d < dim; ++d) missed.Step(w[d], a[d]);
}

// Rows that were never touched have no momentum.
RH_INLINE bool IsZero(const float* values, int64_t n) {
  uint32_t bits = 0;
  for (int64_t d = 0; d < n; ++d) {
    uint32_t value;
    __builtin_memcpy(&value, values + d, sizeof(value));
    bits |= value << 1;  // without the sign
  }
  return bits == 0;
}

RH_INLINE void CatchUpAdam(const UpdateConstants& c, const TrainedRow& row, int64_t dim, int64_t last_step,
                           int64_t until) {
  AdamCatchUp missed(c, last_step, until);
  float* __restrict w = row.w;
  float* __restrict a = row.a;
  float* __restrict b = row.b;
  AdamCatchUp::Stretch stretch;
  for (bool moves = !IsZero(a, dim); moves && missed.Next(&stretch);) {
    for (int64_t d = 0; d < dim; ++d) w[d] -= stretch.Move(a[d], std::sqrt(b[d]), c.epsilon);
  }
  for (int64_t d = 0; d < dim; ++d) {
    a[d] *= missed.slot_factor_a;
    b[d] *= missed.slot_factor_b;
  }
}

template <typename Rule>
RH_INLINE void CatchUpRow(const UpdateConstants& c, const rh_trained_table& table, int64_t row, int64_t until) {
  const int64_t last_step = table.last_steps[row];
  if (last_step >= until) return;
  const TrainedRow trained = RowOf(table, row, Rule::kNumSlots);
  if constexpr (Rule::kNumSlots == MomentumRule::kNumSlots) {
    CatchUpMomentum(c, trained, table.dim, until - last_step);
  } else {
    CatchUpAdam(c, trained, table.dim, last_step, until);
  }
  table.last_steps[row] = static_cast<int32_t>(until);
}

template <typename Rule, bool kExact>
RH_INLINE void UpdateRowsOf(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                            const float* gradient, int64_t num_ids) {
  for (int64_t k = 0; k < num_ids; ++k) {
    if (k + kPrefetchRows < num_ids) PrefetchTrained(table, c.rule, ids[k + kPrefetchRows]);
    const int64_t row = ids[k];
    if constexpr (kExact) {
      CatchUpRow<Rule>(c, table, row, c.step - 1);
      table.last_steps[row] = static_cast<int32_t>(c.step);
    }
    StepRow<Rule, true>(c, gradient + k * table.dim, RowOf(table, row, Rule::kNumSlots), table.dim);
  }
}

RH_INLINE void UpdateRowsRowwise(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                                 const float* gradient, int64_t num_ids) {
  for (int64_t k = 0; k < num_ids; ++k) {
    if (k + kPrefetchRows < num_ids) PrefetchTrained(table, c.rule, ids[k + kPrefetchRows]);
    const int64_t row = ids[k];
    StepRowwise(c, gradient + k * table.dim, table.rows + row * table.dim, table.slots[0] + row, table.dim);
  }
}

template <typename Rule>
RH_INLINE void MoveUntouchedRowsOf(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                                   int64_t num_ids, int64_t begin, int64_t end) {
  const int64_t* touched = std::lower_bound(ids, ids + num_ids, begin);
  for (int64_t row = begin; row < end; ++row) {
    if (touched != ids + num_ids && *touched == row) {
      ++touched;
    } else {
      const TrainedRow trained = RowOf(table, row, Rule::kNumSlots);
      StepRow<Rule, false>(c, trained.w, trained, table.dim);
    }
  }
}

template <typename Rule>
RH_INLINE void CatchUpRowsOf(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids, int64_t begin,
                             int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    if (ids != nullptr && k + kPrefetchRows < end) PrefetchTrained(table, c.rule, ids[k + kPrefetchRows]);
    CatchUpRow<Rule>(c, table, ids == nullptr ? k : ids[k], c.step);
  }
}

}  // namespace

RH_SIMD void UpdateRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                        const float* gradient, int64_t num_ids) {
  const UpdateConstants c = constants;  // a copy, of which the compiler knows that no row overlaps it
  const bool exact = c.kind == RH_EXACT;
  switch (c.rule) {
    case RH_SGD:
      return UpdateRowsOf<SgdRule, false>(c, table, ids, gradient, num_ids);
    case RH_MOMENTUM:
      return exact ? UpdateRowsOf<MomentumRule, true>(c, table, ids, gradient, num_ids)
                   : UpdateRowsOf<MomentumRule, false>(c, table, ids, gradient, num_ids);
    case RH_ADAGRAD:
      return UpdateRowsOf<AdagradRule, false>(c, table, ids, gradient, num_ids);
    case RH_ROWWISE_ADAGRAD:
      return UpdateRowsRowwise(c, table, ids, gradient, num_ids);
    case RH_ADAM:
      return exact ? UpdateRowsOf<AdamRule, true>(c, table, ids, gradient, num_ids)
                   : UpdateRowsOf<AdamRule, false>(c, table, ids, gradient, num_ids);
    case RH_FTRL:
      return c.power == 0.5f ? UpdateRowsOf<FtrlRule<true>, false>(c, table, ids, gradient, num_ids)
                             : UpdateRowsOf<FtrlRule<false>, false>(c, table, ids, gradient, num_ids);
    case RH_RMSPROP:
      return UpdateRowsOf<RmspropRule, false>(c, table, ids, gradient, num_ids);
    case RH_ADADELTA:
      return UpdateRowsOf<AdadeltaRule, false>(c, table, ids, gradient, num_ids);
    case RH_ADAMAX:
      return UpdateRowsOf<AdamaxRule, false>(c, table, ids, gradient, num_ids);
  }
}

RH_SIMD void MoveUntouchedRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                               int64_t num_ids, int64_t begin, int64_t end) {
  const UpdateConstants c = constants;
  return c.rule == RH_MOMENTUM ? MoveUntouchedRowsOf<MomentumRule>(c, table, ids, num_ids, begin, end)
                               : MoveUntouchedRowsOf<AdamRule>(c, table, ids, num_ids, begin, end);
}

RH_SIMD void CatchUpRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                         int64_t begin, int64_t end) {
  const UpdateConstants c = constants;
  return c.rule == RH_MOMENTUM ? CatchUpRowsOf<MomentumRule>(c, table, ids, begin, end)
                               : CatchUpRowsOf<AdamRule>(c, table, ids, begin, end);
}

}  // namespace rankhouse
