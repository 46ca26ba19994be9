// The formulas of rh_optimizer_rule, each written once, for every device: one element at a time, or what row-wise
// Adagrad does with a row. What is written here is the order of every float operation; none are fused (CMakeLists.txt).
//
// A rule is a struct with kNumSlots and
//   Step(c, g, w, a, b)   moves the element w and its slots a and b by the gradient g, which PrepareGradient has made
//                         and after DecayWeight. Slots that a rule does not have are not touched.
//   kTakesSeveral         true where Step also takes vectors of elements
#ifndef RANKHOUSE_CORE_UPDATE_RULES_H_
#define RANKHOUSE_CORE_UPDATE_RULES_H_

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "core/row_types.h"
#include "rankhouse/kernels.h"

// Inlined everywhere: on the CPU into functions that are compiled for several instruction sets (cpu/simd.h).
#define RH_RULE RH_HOST_DEVICE inline __attribute__((always_inline))

namespace rankhouse {

// What a step's formulas take, computed once per call, in double where it is not a plain setting.
struct UpdateConstants {
  int32_t rule;
  int32_t kind;
  int64_t step;
  float gradient_scale;  // never 0
  float l2_decay;        // weight decay that is added to the gradient, else 0
  float weight_decay;    // learning rate times decoupled weight decay, else 0
  float learning_rate;
  float step_size;  // of Adam and Adamax: the learning rate with its bias correction
  float epsilon;
  float momentum;
  float beta_1;
  float one_minus_beta_1;
  float beta_2;
  float one_minus_beta_2;
  float rho;
  float one_minus_rho;
  float l1;
  float twice_l2;         // 2 l2 + beta / lr
  float twice_shrinkage;  // 2 l2_shrinkage
  float power;            // -learning_rate_power
  bool nesterov;
  int64_t most_missed;          // RH_EXACT of Adam: how many missed steps are looked at
  const float* learning_rates;  // as in rh_optimizer
  uint32_t rounding;            // of rows that are not float32: the RoundingSeed of the step
};

// x^n for n >= 0, by squaring: the same bits on every device.
RH_RULE double IntegerPower(double x, int64_t n) {
  double power = 1.0;
  for (; n > 0; n >>= 1) {
    if (n & 1) power *= x;
    x *= x;
  }
  return power;
}

// The learning rate of step s of Adam with its bias correction.
RH_RULE double AdamStepSize(double learning_rate, double beta_1_power, double beta_2_power) {
  return learning_rate * std::sqrt(1.0 - beta_2_power) / (1.0 - beta_1_power);
}

// After how many missed steps all moves to come are below 2^-40 of the first.
inline int64_t MostMissed(double beta_1, double beta_2) {
  if (beta_1 == 0.0) return 0;
  const double ratio = beta_1 / std::sqrt(beta_2);
  return static_cast<int64_t>(std::ceil(std::log(std::ldexp(1.0 - ratio, -40)) / std::log(ratio)));
}

// The settings must have passed CheckUpdates (core/update.h).
inline UpdateConstants MakeUpdateConstants(const rh_optimizer& optimizer) {
  const double learning_rate = optimizer.learning_rate;
  UpdateConstants c = {};
  c.rule = optimizer.rule;
  c.kind = optimizer.kind;
  c.step = optimizer.step;
  c.gradient_scale = optimizer.gradient_scale == 0.0f ? 1.0f : optimizer.gradient_scale;
  c.l2_decay = optimizer.decoupled ? 0.0f : optimizer.weight_decay;
  c.weight_decay = optimizer.decoupled ? static_cast<float>(learning_rate * optimizer.weight_decay) : 0.0f;
  c.learning_rate = optimizer.learning_rate;
  c.step_size = optimizer.learning_rate;
  const double beta_1_power = IntegerPower(optimizer.beta_1, optimizer.step);
  if (c.rule == RH_ADAM) {
    const double beta_2_power = IntegerPower(optimizer.beta_2, optimizer.step);
    c.step_size = static_cast<float>(AdamStepSize(learning_rate, beta_1_power, beta_2_power));
  } else if (c.rule == RH_ADAMAX) {
    c.step_size = static_cast<float>(learning_rate / (1.0 - beta_1_power));
  }
  c.epsilon = optimizer.epsilon;
  c.momentum = optimizer.momentum;
  c.beta_1 = optimizer.beta_1;
  c.one_minus_beta_1 = 1.0f - optimizer.beta_1;
  c.beta_2 = optimizer.beta_2;
  c.one_minus_beta_2 = 1.0f - optimizer.beta_2;
  c.rho = optimizer.rho;
  c.one_minus_rho = 1.0f - optimizer.rho;
  c.l1 = optimizer.l1;
  if (c.rule == RH_FTRL) c.twice_l2 = static_cast<float>(2.0 * optimizer.l2 + optimizer.beta / learning_rate);
  c.twice_shrinkage = 2.0f * optimizer.l2_shrinkage;
  c.power = -optimizer.learning_rate_power;
  c.nesterov = optimizer.nesterov != 0;
  if (c.kind == RH_EXACT && c.rule == RH_ADAM) c.most_missed = MostMissed(optimizer.beta_1, optimizer.beta_2);
  c.learning_rates = optimizer.learning_rates;
  c.rounding = RoundingSeed(optimizer.step);
  return c;
}

// What a rule is given for g, from the gradient and the weight before DecayWeight. T is float, or several of them.
template <typename T>
RH_RULE T PrepareGradient(const UpdateConstants& c, const T& gradient, const T& w) {
  const T g = c.gradient_scale * gradient;
  return c.l2_decay != 0.0f ? g + c.l2_decay * w : g;
}

// Decoupled weight decay, before the step.
template <typename T>
RH_RULE T DecayWeight(const UpdateConstants& c, const T& w) {
  return c.weight_decay != 0.0f ? w - c.weight_decay * w : w;
}

struct SgdRule {
  static constexpr int kNumSlots = 0;
  static constexpr bool kTakesSeveral = true;
  template <typename T>
  RH_RULE static void Step(const UpdateConstants& c, const T& g, T& w, T&, T&) {
    w -= c.learning_rate * g;
  }
};

struct MomentumRule {
  static constexpr int kNumSlots = 1;
  static constexpr bool kTakesSeveral = true;
  template <typename T>
  RH_RULE static void Step(const UpdateConstants& c, const T& g, T& w, T& a, T&) {
    const T move = c.learning_rate * g;
    a = c.momentum * a - move;
    w += c.nesterov ? c.momentum * a - move : a;
  }
};

struct AdagradRule {
  static constexpr int kNumSlots = 1;
  static constexpr bool kTakesSeveral = false;
  RH_RULE static void Step(const UpdateConstants& c, float g, float& w, float& a, float&) {
    a += g * g;
    w -= c.learning_rate * g / (std::sqrt(a) + c.epsilon);
  }
};

// Its slot has one number per row. mean(g^2) has 16 partial sums: number l adds up g[d]^2, each square rounded, of the
// d with d mod 16 = l in rising order, from 0. They are added pairwise: l and l + 8, l and l + 4, l and l + 2, l and
// l + 1; the sum is divided by D.
struct RowwiseAdagradRule {
  static constexpr int kNumSlots = 1;
  static constexpr int kNumSums = 16;

  // Moves the row's slot, and returns what each g is multiplied with.
  RH_RULE static float StepSlot(const UpdateConstants& c, float mean, float& a) {
    a += mean;
    return c.learning_rate / (std::sqrt(a) + c.epsilon);
  }
  template <typename T>
  RH_RULE static void Step(float factor, const T& g, T& w) {
    w -= factor * g;
  }
};

struct AdamRule {
  static constexpr int kNumSlots = 2;
  static constexpr bool kTakesSeveral = false;
  RH_RULE static void Step(const UpdateConstants& c, float g, float& w, float& a, float& b) {
    a = c.beta_1 * a + c.one_minus_beta_1 * g;
    b = c.beta_2 * b + c.one_minus_beta_2 * (g * g);
    w -= c.step_size * a / (std::sqrt(b) + c.epsilon);
  }
};

// kRoot: learning_rate_power is -0.5, the usual one, which needs no pow().
template <bool kRoot>
struct FtrlRule {
  static constexpr int kNumSlots = 2;
  static constexpr bool kTakesSeveral = false;
  RH_RULE static float Power(const UpdateConstants& c, float x) { return kRoot ? std::sqrt(x) : std::pow(x, c.power); }
  RH_RULE static void Step(const UpdateConstants& c, float g, float& w, float& a, float& b) {
    const float accumulator = a + g * g;
    const float root = Power(c, accumulator);
    b += g + c.twice_shrinkage * w - (root - Power(c, a)) / c.learning_rate * w;
    a = accumulator;
    const float shrunk = (b < 0.0f ? -c.l1 : c.l1) - b;
    const float moved = shrunk / (root / c.learning_rate + c.twice_l2);
    w = std::fabs(b) > c.l1 ? moved : 0.0f;
  }
};

struct RmspropRule {
  static constexpr int kNumSlots = 1;
  static constexpr bool kTakesSeveral = false;
  RH_RULE static void Step(const UpdateConstants& c, float g, float& w, float& a, float&) {
    a = c.rho * a + c.one_minus_rho * (g * g);
    w -= c.learning_rate * g / (std::sqrt(a) + c.epsilon);
  }
};

struct AdadeltaRule {
  static constexpr int kNumSlots = 2;
  static constexpr bool kTakesSeveral = false;
  RH_RULE static void Step(const UpdateConstants& c, float g, float& w, float& a, float& b) {
    a = c.rho * a + c.one_minus_rho * (g * g);
    const float u = std::sqrt(b + c.epsilon) / std::sqrt(a + c.epsilon) * g;
    b = c.rho * b + c.one_minus_rho * (u * u);
    w -= c.learning_rate * u;
  }
};

struct AdamaxRule {
  static constexpr int kNumSlots = 2;
  static constexpr bool kTakesSeveral = false;
  RH_RULE static void Step(const UpdateConstants& c, float g, float& w, float& a, float& b) {
    a = c.beta_1 * a + c.one_minus_beta_1 * g;
    const float decayed = c.beta_2 * b;
    const float size = std::fabs(g);
    b = decayed < size ? size : decayed;
    w -= c.step_size * a / (b + c.epsilon);
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// RH_EXACT: what the steps that did not touch a row have missed
// ---------------------------------------------------------------------------------------------------------------------

// Momentum with a gradient of zero: step k of the missed ones makes the slot momentum^k a and adds it to the weight
// (with nesterov, momentum times it). So all of them together multiply the slot and add a share of it.
struct MomentumCatchUp {
  float slot_factor;
  float move_factor;

  RH_RULE static MomentumCatchUp Make(const UpdateConstants& c, int64_t num_missed) {
    const double momentum = c.momentum;
    const double power = IntegerPower(momentum, num_missed);
    const double sum = momentum * (1.0 - power) / (1.0 - momentum);
    return {static_cast<float>(power), static_cast<float>(c.nesterov ? momentum * sum : sum)};
  }
  RH_RULE void Step(float& w, float& a) const {
    w += move_factor * a;
    a *= slot_factor;
  }
};

// Adam with a gradient of zero moves the weight in missed step k = 1, 2, ... by
//   -lr_k a beta_1^k / (q_k r + epsilon),   q_k = beta_2^(k/2),   r = sqrt(b)
// with lr_k that step's learning rate and bias correction: no closed form. But q_k falls slowly, so a stretch of steps
// in which it falls by at most 1 % can be one term: with the weights c_k = lr_k beta_1^k, their sum m_0, the mean q of
// the q_k under them, and their central moments m_2 and m_3 (the first is 0),
//   -a / (q r + epsilon) (m_0 + m_2 y^2 - m_3 y^3),   y = r / (q r + epsilon)
// which is the Taylor expansion around q; what it leaves out is below 1e-8 of it. Moves fall at least as fast as
// (beta_1 / sqrt(beta_2))^k, so after c.most_missed steps those to come are below 2^-40 of the first.
//
//   AdamCatchUp missed(c, last_step, until);   // the steps last_step + 1 to until
//   while (missed.Next(&stretch)) w -= stretch.Move(a, r, c.epsilon);
//   a *= missed.slot_factor_a; b *= missed.slot_factor_b;
class AdamCatchUp {
 public:
  struct Stretch {
    float q, m_0, m_2, m_3;

    RH_RULE float Move(float a, float r, float epsilon) const {
      const float inverse = 1.0f / (q * r + epsilon);
      const float y = r * inverse;
      return a * inverse * (m_0 + y * y * (m_2 - m_3 * y));
    }
  };

  RH_RULE AdamCatchUp(const UpdateConstants& c, int64_t last_step, int64_t until)
      : slot_factor_a(static_cast<float>(IntegerPower(c.beta_1, until - last_step))),
        slot_factor_b(static_cast<float>(IntegerPower(c.beta_2, until - last_step))),
        c_(c),
        step_(last_step + 1),
        until_(until - last_step > c.most_missed ? last_step + c.most_missed : until),
        root_beta_2_(std::sqrt(static_cast<double>(c.beta_2))),
        beta_1_power_(IntegerPower(c.beta_1, last_step + 1)),
        beta_2_power_(IntegerPower(c.beta_2, last_step + 1)),
        decay_(c.beta_1),
        q_(root_beta_2_) {}

  // Gives the next stretch; false where there is none.
  RH_RULE bool Next(Stretch* stretch) {
    if (step_ > until_) return false;
    const double first = q_;
    double sum = 0.0, sum_1 = 0.0, sum_2 = 0.0, sum_3 = 0.0;  // of c_k, and of it times powers of q_k - first
    for (; step_ <= until_ && q_ >= 0.99 * first; ++step_) {
      const double weight = AdamStepSize(LearningRate(), beta_1_power_, beta_2_power_) * decay_;
      const double distance = q_ - first;
      sum += weight;
      sum_1 += weight * distance;
      sum_2 += weight * distance * distance;
      sum_3 += weight * distance * distance * distance;
      decay_ *= c_.beta_1;
      q_ *= root_beta_2_;
      beta_1_power_ *= c_.beta_1;
      beta_2_power_ *= c_.beta_2;
    }
    const double mean = sum > 0.0 ? sum_1 / sum : 0.0;
    stretch->q = static_cast<float>(first + mean);
    stretch->m_0 = static_cast<float>(sum);
    stretch->m_2 = static_cast<float>(sum_2 - mean * sum_1);
    stretch->m_3 = static_cast<float>(sum_3 - 3.0 * mean * sum_2 + 2.0 * mean * mean * sum_1);
    return true;
  }

  const float slot_factor_a;
  const float slot_factor_b;

 private:
  RH_RULE double LearningRate() const {
    return c_.learning_rates == nullptr || step_ >= c_.step ? c_.learning_rate : c_.learning_rates[step_ - 1];
  }

  const UpdateConstants& c_;
  int64_t step_;
  const int64_t until_;
  const double root_beta_2_;
  double beta_1_power_;
  double beta_2_power_;
  double decay_;
  double q_;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_UPDATE_RULES_H_
