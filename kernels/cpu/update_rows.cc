#include "cpu/update_rows.h"

#include <algorithm>

#include "cpu/narrow_rows.h"

namespace rankhouse {
namespace {

// Rows are worked on in blocks of this many columns, which fill the widest vector register.
constexpr int64_t kBlock = 16;

// Weights as float32 and their slots; a slot that the rule does not have is never used.
struct TrainedRow {
  float* __restrict w;
  float* __restrict a;
  float* __restrict b;
};

// The weights of a part of a row that begins at column `first`, and their slots.
RH_INLINE TrainedRow PartOf(const rh_trained_table& table, int64_t row, int64_t first, float* weights, int num_slots) {
  const int64_t at = row * table.dim + first;
  return {weights, num_slots > 0 ? table.slots[0] + at : nullptr, num_slots > 1 ? table.slots[1] + at : nullptr};
}

// A block of columns as one value, which stays in a register.
typedef float Lanes __attribute__((vector_size(kBlock * sizeof(float))));

// kFull: a block; else its first n columns, and the rest is filled up with zeros, which change no sum.
template <bool kFull>
RH_INLINE Lanes LoadLanes(const float* from, int64_t n) {
  Lanes lanes;
  if constexpr (kFull) {
    __builtin_memcpy(&lanes, from, sizeof(lanes));
  } else {
    float block[kBlock];
    for (int64_t d = 0; d < kBlock; ++d) block[d] = d < n ? from[d] : 0.0f;
    __builtin_memcpy(&lanes, block, sizeof(lanes));
  }
  return lanes;
}

template <bool kFull>
RH_INLINE void StoreLanes(const Lanes& lanes, int64_t n, float* to) {
  if constexpr (kFull) {
    __builtin_memcpy(to, &lanes, sizeof(lanes));
  } else {
    float block[kBlock];
    __builtin_memcpy(block, &lanes, sizeof(lanes));
    for (int64_t d = 0; d < n; ++d) to[d] = block[d];
  }
}

// The step of a block with the gradient g, or where !kTouched of zero.
template <typename Rule, bool kTouched, typename T>
RH_INLINE void StepOf(const UpdateConstants& c, T g, T& w, T& a, T& b) {
  if constexpr (kTouched) {
    g = PrepareGradient(c, g, w);
    w = DecayWeight(c, w);
  }
  Rule::Step(c, g, w, a, b);
}

// Rules that take single elements get them from arrays that nothing else can overlap.
template <typename Rule, bool kTouched>
RH_INLINE void StepLanes(const UpdateConstants& c, const Lanes& g_lanes, Lanes& w_lanes, Lanes& a_lanes,
                         Lanes& b_lanes) {
  if constexpr (Rule::kTakesSeveral) {
    StepOf<Rule, kTouched>(c, g_lanes, w_lanes, a_lanes, b_lanes);
  } else {
    float g[kBlock], w[kBlock], a[kBlock], b[kBlock];
    __builtin_memcpy(g, &g_lanes, sizeof(g));
    __builtin_memcpy(w, &w_lanes, sizeof(w));
    __builtin_memcpy(a, &a_lanes, sizeof(a));
    __builtin_memcpy(b, &b_lanes, sizeof(b));
    for (int64_t d = 0; d < kBlock; ++d) StepOf<Rule, kTouched>(c, g[d], w[d], a[d], b[d]);
    __builtin_memcpy(&w_lanes, w, sizeof(w));
    __builtin_memcpy(&a_lanes, a, sizeof(a));
    __builtin_memcpy(&b_lanes, b, sizeof(b));
  }
}

// One step of n columns from `first` on. kTouched: with a gradient; without one it is zero, and weights do not decay.
template <typename Rule, bool kTouched, bool kFull>
RH_INLINE void StepColumns(const UpdateConstants& c, const float* gradient, const TrainedRow& row, int64_t first,
                           int64_t n) {
  Lanes w = LoadLanes<kFull>(row.w + first, n);
  Lanes a = {};
  Lanes b = {};
  Lanes g = {};
  if constexpr (Rule::kNumSlots > 0) a = LoadLanes<kFull>(row.a + first, n);
  if constexpr (Rule::kNumSlots > 1) b = LoadLanes<kFull>(row.b + first, n);
  if constexpr (kTouched) g = LoadLanes<kFull>(gradient + first, n);
  StepLanes<Rule, kTouched>(c, g, w, a, b);
  StoreLanes<kFull>(w, n, row.w + first);
  if constexpr (Rule::kNumSlots > 0) StoreLanes<kFull>(a, n, row.a + first);
  if constexpr (Rule::kNumSlots > 1) StoreLanes<kFull>(b, n, row.b + first);
}

template <typename Rule, bool kTouched>
RH_INLINE void StepPart(const UpdateConstants& c, const float* gradient, const TrainedRow& part, int64_t dim) {
  int64_t d = 0;
  for (; d + kBlock <= dim; d += kBlock) StepColumns<Rule, kTouched, true>(c, gradient, part, d, kBlock);
  if (d < dim) StepColumns<Rule, kTouched, false>(c, gradient, part, d, dim - d);
}

template <typename Rule, bool kTouched, bool kNarrow>
RH_INLINE void StepRow(const UpdateConstants& c, const float* gradient, const rh_trained_table& table, int64_t row) {
  Weights<kNarrow> weights(table, row);
  int64_t first = 0;
  do {
    const int64_t n = weights.Size(first);
    const TrainedRow part = PartOf(table, row, first, weights.Load(first, n), Rule::kNumSlots);
    StepPart<Rule, kTouched>(c, kTouched ? gradient + first : nullptr, part, n);
    weights.Store(first, n, c.rounding);
    first += n;
  } while (kNarrow && first < table.dim);
}

// The mean of the squares, from their partial sums: the order is that of RowwiseAdagradRule.
RH_INLINE float MeanOf(const Lanes& lanes, int64_t dim) {
  typedef int32_t Places __attribute__((vector_size(kBlock * sizeof(int32_t))));
  Lanes sums = lanes;
  sums += __builtin_shuffle(sums, Places{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  sums += __builtin_shuffle(sums, Places{4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3});
  sums += __builtin_shuffle(sums, Places{2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1});
  sums += __builtin_shuffle(sums, Places{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0});
  return sums[0] / static_cast<float>(dim);
}

template <bool kFull>
RH_INLINE void AddSquares(const UpdateConstants& c, const float* gradient, const float* w, int64_t n, Lanes& sums) {
  const Lanes g = PrepareGradient(c, LoadLanes<kFull>(gradient, n), LoadLanes<kFull>(w, n));
  sums += g * g;
}

template <bool kFull>
RH_INLINE void ScaleColumns(const UpdateConstants& c, float factor, const float* gradient, float* w, int64_t n) {
  const Lanes before = LoadLanes<kFull>(w, n);
  const Lanes g = PrepareGradient(c, LoadLanes<kFull>(gradient, n), before);
  Lanes after = DecayWeight(c, before);
  RowwiseAdagradRule::Step(factor, g, after);
  StoreLanes<kFull>(after, n, w);
}

RH_INLINE void AddSquaresOfPart(const UpdateConstants& c, const float* gradient, const float* w, int64_t dim,
                                Lanes& sums) {
  static_assert(kBlock == RowwiseAdagradRule::kNumSums, "a block adds to every sum once");
  int64_t d = 0;
  for (; d + kBlock <= dim; d += kBlock) AddSquares<true>(c, gradient + d, w + d, kBlock, sums);
  if (d < dim) AddSquares<false>(c, gradient + d, w + d, dim - d, sums);
}

RH_INLINE void ScalePart(const UpdateConstants& c, float factor, const float* gradient, float* w, int64_t dim) {
  int64_t d = 0;
  for (; d + kBlock <= dim; d += kBlock) ScaleColumns<true>(c, factor, gradient + d, w + d, kBlock);
  if (d < dim) ScaleColumns<false>(c, factor, gradient + d, w + d, dim - d);
}

// Parts begin at multiples of kBlock, so that all add up in the order of whole rows.
template <bool kNarrow>
RH_INLINE void StepRowwise(const UpdateConstants& c, const float* gradient, const rh_trained_table& table,
                           int64_t row) {
  Weights<kNarrow> weights(table, row);
  Lanes sums = {};
  int64_t first = 0;
  do {
    const int64_t n = weights.Size(first);
    AddSquaresOfPart(c, gradient + first, weights.Load(first, n), n, sums);
    first += n;
  } while (kNarrow && first < table.dim);
  const float factor = RowwiseAdagradRule::StepSlot(c, MeanOf(sums, table.dim), table.slots[0][row]);
  first = 0;
  do {
    const int64_t n = weights.Size(first);
    ScalePart(c, factor, gradient + first, weights.Load(first, n), n);
    weights.Store(first, n, c.rounding);
    first += n;
  } while (kNarrow && first < table.dim);
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

template <typename Rule, bool kNarrow>
RH_INLINE void CatchUpRow(const UpdateConstants& c, const rh_trained_table& table, int64_t row, int64_t until) {
  const int64_t last_step = table.last_steps[row];
  if (last_step >= until) return;
  Weights<kNarrow> weights(table, row);
  int64_t first = 0;
  do {
    const int64_t n = weights.Size(first);
    const TrainedRow part = PartOf(table, row, first, weights.Load(first, n), Rule::kNumSlots);
    if constexpr (Rule::kNumSlots == MomentumRule::kNumSlots) {
      CatchUpMomentum(c, part, n, until - last_step);
    } else {
      CatchUpAdam(c, part, n, last_step, until);
    }
    weights.Store(first, n, kNarrow ? RoundingSeed(until) : 0);
    first += n;
  } while (kNarrow && first < table.dim);
  table.last_steps[row] = static_cast<int32_t>(until);
}

template <typename Rule, bool kExact, bool kNarrow>
RH_INLINE void UpdateRowsOf(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                            const float* gradient, int64_t num_ids) {
  for (int64_t k = 0; k < num_ids; ++k) {
    if (k + kPrefetchRows < num_ids) PrefetchTrained<kNarrow>(table, c.rule, ids[k + kPrefetchRows]);
    const int64_t row = ids[k];
    if constexpr (kExact) {
      CatchUpRow<Rule, kNarrow>(c, table, row, c.step - 1);
      table.last_steps[row] = static_cast<int32_t>(c.step);
    }
    StepRow<Rule, true, kNarrow>(c, gradient + k * table.dim, table, row);
  }
}

template <bool kNarrow>
RH_INLINE void UpdateRowsRowwise(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                                 const float* gradient, int64_t num_ids) {
  for (int64_t k = 0; k < num_ids; ++k) {
    if (k + kPrefetchRows < num_ids) PrefetchTrained<kNarrow>(table, c.rule, ids[k + kPrefetchRows]);
    StepRowwise<kNarrow>(c, gradient + k * table.dim, table, ids[k]);
  }
}

template <typename Rule, bool kNarrow>
RH_INLINE void MoveUntouchedRowsOf(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                                   int64_t num_ids, int64_t begin, int64_t end) {
  const int64_t* touched = std::lower_bound(ids, ids + num_ids, begin);
  for (int64_t row = begin; row < end; ++row) {
    if (touched != ids + num_ids && *touched == row) {
      ++touched;
    } else {
      StepRow<Rule, false, kNarrow>(c, nullptr, table, row);
    }
  }
}

template <typename Rule, bool kNarrow>
RH_INLINE void CatchUpRowsOf(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids, int64_t begin,
                             int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    if (ids != nullptr && k + kPrefetchRows < end) PrefetchTrained<kNarrow>(table, c.rule, ids[k + kPrefetchRows]);
    CatchUpRow<Rule, kNarrow>(c, table, ids == nullptr ? k : ids[k], c.step);
  }
}

// The same for tables of float32 (!kNarrow) and of other types.
template <bool kNarrow>
RH_INLINE void UpdateRowsBy(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                            const float* gradient, int64_t num_ids) {
  const bool exact = c.kind == RH_EXACT;
  switch (c.rule) {
    case RH_SGD:
      return UpdateRowsOf<SgdRule, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_MOMENTUM:
      return exact ? UpdateRowsOf<MomentumRule, true, kNarrow>(c, table, ids, gradient, num_ids)
                   : UpdateRowsOf<MomentumRule, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_ADAGRAD:
      return UpdateRowsOf<AdagradRule, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_ROWWISE_ADAGRAD:
      return UpdateRowsRowwise<kNarrow>(c, table, ids, gradient, num_ids);
    case RH_ADAM:
      return exact ? UpdateRowsOf<AdamRule, true, kNarrow>(c, table, ids, gradient, num_ids)
                   : UpdateRowsOf<AdamRule, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_FTRL:
      return c.power == 0.5f ? UpdateRowsOf<FtrlRule<true>, false, kNarrow>(c, table, ids, gradient, num_ids)
                             : UpdateRowsOf<FtrlRule<false>, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_RMSPROP:
      return UpdateRowsOf<RmspropRule, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_ADADELTA:
      return UpdateRowsOf<AdadeltaRule, false, kNarrow>(c, table, ids, gradient, num_ids);
    case RH_ADAMAX:
      return UpdateRowsOf<AdamaxRule, false, kNarrow>(c, table, ids, gradient, num_ids);
  }
}

RH_SIMD void UpdateFloatRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                             const float* gradient, int64_t num_ids) {
  const UpdateConstants c = constants;  // a copy, of which the compiler knows that no row overlaps it
  UpdateRowsBy<false>(c, table, ids, gradient, num_ids);
}

RH_SIMD void UpdateNarrowRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                              const float* gradient, int64_t num_ids) {
  const UpdateConstants c = constants;
  UpdateRowsBy<true>(c, table, ids, gradient, num_ids);
}

template <bool kNarrow>
RH_INLINE void MoveUntouchedRowsBy(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids,
                                   int64_t num_ids, int64_t begin, int64_t end) {
  return c.rule == RH_MOMENTUM ? MoveUntouchedRowsOf<MomentumRule, kNarrow>(c, table, ids, num_ids, begin, end)
                               : MoveUntouchedRowsOf<AdamRule, kNarrow>(c, table, ids, num_ids, begin, end);
}

template <bool kNarrow>
RH_INLINE void CatchUpRowsBy(const UpdateConstants& c, const rh_trained_table& table, const int64_t* ids, int64_t begin,
                             int64_t end) {
  return c.rule == RH_MOMENTUM ? CatchUpRowsOf<MomentumRule, kNarrow>(c, table, ids, begin, end)
                               : CatchUpRowsOf<AdamRule, kNarrow>(c, table, ids, begin, end);
}

}  // namespace

void UpdateRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                const float* gradient, int64_t num_ids) {
  table.type == RH_FLOAT32 ? UpdateFloatRows(constants, table, ids, gradient, num_ids)
                           : UpdateNarrowRows(constants, table, ids, gradient, num_ids);
}

RH_SIMD void MoveUntouchedRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                               int64_t num_ids, int64_t begin, int64_t end) {
  const UpdateConstants c = constants;
  return table.type == RH_FLOAT32 ? MoveUntouchedRowsBy<false>(c, table, ids, num_ids, begin, end)
                                  : MoveUntouchedRowsBy<true>(c, table, ids, num_ids, begin, end);
}

RH_SIMD void CatchUpRows(const UpdateConstants& constants, const rh_trained_table& table, const int64_t* ids,
                         int64_t begin, int64_t end) {
  const UpdateConstants c = constants;
  return table.type == RH_FLOAT32 ? CatchUpRowsBy<false>(c, table, ids, begin, end)
                                  : CatchUpRowsBy<true>(c, table, ids, begin, end);
}

}  // namespace rankhouse
