// Steps of optimizers on columns of rows, as kernels make them: rh_apply_cuda, and the update that is fused with the
// backward. The rules are those of core/update_rules.h, for all devices.
#ifndef RANKHOUSE_CUDA_UPDATE_ROWS_CUH_
#define RANKHOUSE_CUDA_UPDATE_ROWS_CUH_

#include "core/update_rules.h"
#include "cuda/segments.cuh"

namespace rankhouse {

// A table that is trained, and its optimizer.
struct DeviceTrained {
  rh_trained_table table;
  UpdateConstants constants;
};

// Neighbouring weights that start at `at` in the table, as float32.
template <int kColumns>
__device__ __forceinline__ Columns<kColumns> LoadWeights(const rh_trained_table& table, int64_t at) {
  if (table.type == RH_FLOAT32) {
    return *reinterpret_cast<const Columns<kColumns>*>(static_cast<const float*>(table.rows) + at);
  }
  using Bits = typename HalfRowPart<RH_BFLOAT16, kColumns>::Bits;
  const Bits bits = *reinterpret_cast<const Bits*>(static_cast<const uint16_t*>(table.rows) + at);
  Columns<kColumns> weights;
  for (int i = 0; i < kColumns; ++i) {
    weights.value[i] = table.type == RH_FLOAT16 ? HalfToFloat(bits.value[i]) : BFloat16ToFloat(bits.value[i]);
  }
  return weights;
}

// The way back: others than float32 are rounded with the random bits of a step (RoundingSeed).
template <int kColumns>
__device__ __forceinline__ void StoreWeights(const rh_trained_table& table, int64_t at, uint32_t seed,
                                             const Columns<kColumns>& weights) {
  if (table.type == RH_FLOAT32) {
    *reinterpret_cast<Columns<kColumns>*>(static_cast<float*>(table.rows) + at) = weights;
    return;
  }
  using Bits = typename HalfRowPart<RH_BFLOAT16, kColumns>::Bits;
  Bits bits;
  for (int i = 0; i < kColumns; ++i) {
    const float value = weights.value[i];
    const uint32_t random = RandomBits(value, seed);
    bits.value[i] = static_cast<uint16_t>(table.type == RH_FLOAT16 ? RoundToFloat16(value, random)
                                                                   : RoundToBFloat16(value, random));
  }
  *reinterpret_cast<Bits*>(static_cast<uint16_t*>(table.rows) + at) = bits;
}

// One step of neighbouring columns that start at `at` in the table. kTouched: with a gradient; without one it is zero,
// and weights do not decay.
template <typename Rule, bool kTouched, int kColumns>
__device__ __forceinline__ void StepBy(const DeviceTrained& trained, int64_t at, const Columns<kColumns>& gradient) {
  using Part = Columns<kColumns>;
  const UpdateConstants& c = trained.constants;
  const rh_trained_table& table = trained.table;
  Part w = LoadWeights<kColumns>(table, at);
  Part a = {};
  Part b = {};
  if (Rule::kNumSlots > 0) a = *reinterpret_cast<const Part*>(table.slots[0] + at);
  if (Rule::kNumSlots > 1) b = *reinterpret_cast<const Part*>(table.slots[1] + at);
  for (int i = 0; i < kColumns; ++i) {
    const float g = kTouched ? PrepareGradient(c, gradient.value[i], w.value[i]) : 0.0f;
    if (kTouched) w.value[i] = DecayWeight(c, w.value[i]);
    Rule::Step(c, g, w.value[i], a.value[i], b.value[i]);
  }
  StoreWeights(table, at, c.rounding, w);
  if (Rule::kNumSlots > 0) *reinterpret_cast<Part*>(table.slots[0] + at) = a;
  if (Rule::kNumSlots > 1) *reinterpret_cast<Part*>(table.slots[1] + at) = b;
}

// The same for the table's rule, other than row-wise Adagrad.
template <int kColumns>
__device__ __forceinline__ void StepColumns(const DeviceTrained& trained, int64_t at,
                                            const Columns<kColumns>& gradient) {
  switch (trained.constants.rule) {
    case RH_SGD:
      return StepBy<SgdRule, true>(trained, at, gradient);
    case RH_MOMENTUM:
      return StepBy<MomentumRule, true>(trained, at, gradient);
    case RH_ADAGRAD:
      return StepBy<AdagradRule, true>(trained, at, gradient);
    case RH_ADAM:
      return StepBy<AdamRule, true>(trained, at, gradient);
    case RH_FTRL:
      return trained.constants.power == 0.5f ? StepBy<FtrlRule<true>, true>(trained, at, gradient)
                                             : StepBy<FtrlRule<false>, true>(trained, at, gradient);
    case RH_RMSPROP:
      return StepBy<RmspropRule, true>(trained, at, gradient);
    case RH_ADADELTA:
      return StepBy<AdadeltaRule, true>(trained, at, gradient);
    case RH_ADAMAX:
      return StepBy<AdamaxRule, true>(trained, at, gradient);
    default:
      return;
  }
}

// Row-wise Adagrad by a group of threads: first AddSquares for all columns, `lanes` times kColumns at a time, then
// Factor, then Step for all columns again. The order is that of RowwiseAdagradRule: a thread adds up those of the 16
// partial sums whose columns are its own modulo 16, in the order of columns, which other threads hand it.
template <int kColumns>
class RowwiseStep {
 public:
  __device__ void AddSquares(const Group& group, const DeviceTrained& trained, int64_t at,
                             const Columns<kColumns>& gradient, bool active) {
    Columns<kColumns> square = {};
    if (active) {
      const Columns<kColumns> w = LoadWeights<kColumns>(trained.table, at);
      for (int i = 0; i < kColumns; ++i) {
        const float g = PrepareGradient(trained.constants, gradient.value[i], w.value[i]);
        square.value[i] = g * g;
      }
    }
    for (int source = group.lane & (kThreads - 1); source < group.lanes; source += kThreads) {
      for (int i = 0; i < kColumns; ++i) sums_.value[i] += group.Shuffle(square.value[i], source);
    }
  }

  // Moves the row's slot; what each g is multiplied with.
  __device__ float Factor(const Group& group, const DeviceTrained& trained, int64_t row) {
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (step >= group.lanes) continue;  // the other sums are 0
      for (int i = 0; i < kColumns; ++i) {
        sums_.value[i] += __shfl_xor_sync(group.mask, sums_.value[i], step, group.lanes);
      }
    }
    for (int step = kColumns / 2; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) sums_.value[i] += sums_.value[i + step];
    }
    float factor = 0.0f;
    if (group.lane == 0) {
      const float mean = sums_.value[0] / static_cast<float>(trained.table.dim);
      factor = RowwiseAdagradRule::StepSlot(trained.constants, mean, trained.table.slots[0][row]);
    }
    return group.Shuffle(factor, 0);
  }

  __device__ static void Step(const DeviceTrained& trained, int64_t at, float factor,
                              const Columns<kColumns>& gradient) {
    Columns<kColumns> w = LoadWeights<kColumns>(trained.table, at);
    for (int i = 0; i < kColumns; ++i) {
      const float g = PrepareGradient(trained.constants, gradient.value[i], w.value[i]);
      w.value[i] = DecayWeight(trained.constants, w.value[i]);
      RowwiseAdagradRule::Step(factor, g, w.value[i]);
    }
    StoreWeights(trained.table, at, trained.constants.rounding, w);
  }

 private:
  static constexpr int kThreads = RowwiseAdagradRule::kNumSums / kColumns;  // that hold different sums

  Columns<kColumns> sums_ = {};
};

// True where the table's rows and slots can be read and written four columns at a time.
inline bool ByFour(const rh_trained_table& table, int num_element_slots) {
  bool aligned = IsAligned(table.rows, table.type == RH_FLOAT32 ? 16 : 8) && table.dim % 4 == 0;
  for (int s = 0; s < num_element_slots; ++s) aligned = aligned && IsAligned(table.slots[s], 16);
  return aligned;
}

// How many of a rule's slots have a number for each element.
inline int NumElementSlots(int32_t rule) { return rule == RH_ROWWISE_ADAGRAD ? 0 : rh_num_slots(rule); }

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_UPDATE_ROWS_CUH_
