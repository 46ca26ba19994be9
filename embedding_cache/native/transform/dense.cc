#include "transform/dense.h"

#include <cmath>

#include "transform/log_loops.h"

namespace rankhouse::transform {
namespace {

LogLoop ChooseLogLoop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return LogOnePlusAvx2;
#endif
  return LogOnePlusPlain;
}

// Subtracts and divides in the type of the values.
template <typename T>
void Normalize(const DenseSteps& steps, T* values, int64_t n) {
  if (!steps.mean) return;
  const T mean = static_cast<T>(*steps.mean);
  for (int64_t i = 0; i < n; ++i) values[i] -= mean;
  if (!(steps.std && *steps.std > 0)) return;
  const T std = static_cast<T>(*steps.std);
  for (int64_t i = 0; i < n; ++i) values[i] /= std;
}

}  // namespace

void ApplySteps(const DenseSteps& steps, const double* values, int64_t n, int64_t stride, float* out) {
  static const LogLoop log_one_plus = ChooseLogLoop();
  double wide[kMaxDenseRows];
  for (int64_t i = 0; i < n; ++i) wide[i] = std::isnan(values[i * stride]) ? steps.fill : values[i * stride];
  if (steps.clip_min) {
    for (int64_t i = 0; i < n; ++i) wide[i] = wide[i] < *steps.clip_min ? *steps.clip_min : wide[i];
  }
  if (steps.clip_max) {
    for (int64_t i = 0; i < n; ++i) wide[i] = wide[i] > *steps.clip_max ? *steps.clip_max : wide[i];
  }
  if (!steps.log) Normalize(steps, wide, n);
  float narrow[kMaxDenseRows];
  for (int64_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(wide[i]);
  if (steps.log) {
    log_one_plus(narrow, n);
    Normalize(steps, narrow, n);
  }
  for (int64_t i = 0; i < n; ++i) out[i * stride] = narrow[i];
}

}  // namespace rankhouse::transform
