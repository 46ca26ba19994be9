// log(1 + x) of float32, the same bits as NumPy's log of float32 x + 1, with which features were prepared.
//
// NumPy does not call the C library where the processor has fused products (AVX2 with FMA3, or AVX-512): its loops
// (loops_exponent_log.dispatch.c.src) split y = 1 + x into 2^k * m, m between sqrt(1/2) and sqrt(2), and take the
// quotient of two polynomials in m - 1, each step of them fused, and k * log(2) fused to that. So do these, and without
// such instructions as well: slower there, but the same.
#ifndef RANKHOUSE_TRANSFORM_LOG_LOOPS_H_
#define RANKHOUSE_TRANSFORM_LOG_LOOPS_H_

#include <cstdint>
#include <cstring>
#include <limits>

namespace rankhouse::transform {

// Replaces each of n values by log(1 + value). None of them is NaN.
using LogLoop = void (*)(float* values, int64_t n);

void LogOnePlusPlain(float* values, int64_t n);
void LogOnePlusAvx2(float* values, int64_t n);

namespace {

template <typename To, typename From>
inline To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// The polynomial of the coefficients, the highest power first.
template <int kCount>
inline float Polynomial(const float (&coefficients)[kCount], float x) {
  float sum = coefficients[0];
  for (int n = 1; n < kCount; ++n) sum = __builtin_fmaf(sum, x, coefficients[n]);
  return sum;
}

constexpr float kNumerator[] = {2.589979117907922693523e-02f, 3.808837741388407920751e-01f,
                                1.480000633576506585156e+00f, 2.112677543073053063722e+00f,
                                9.999999999999998702752e-01f, 0.0f};
constexpr float kDenominator[] = {5.875095403124574342950e-03f, 1.546476374983906719538e-01f,
                                  9.864942958519418960339e-01f, 2.453006071784736363091e+00f,
                                  2.612677543073109236779e+00f, 1.0f};
constexpr float kSqrtHalf = 0.707106781186547524400844362104849039f;
constexpr float kLog2 = 0.693147180559945309417232121458176568f;

// 1 + x is 0, or 2^-24 or more in magnitude: never a denormal number.
inline float LogOnePlus(float x) {
  const float y = x + 1;
  const auto bits = BitsAs<int32_t>(y);
  const auto mantissa = BitsAs<float>((bits & 0x7FFFFF) | 126 << 23);  // in [1/2, 1)
  const bool is_low = mantissa <= kSqrtHalf;
  const float exponent = static_cast<float>((bits >> 23) - 126) - (is_low ? 1.0f : 0.0f);
  const float m = (is_low ? mantissa + mantissa : mantissa) - 1;
  float log = __builtin_fmaf(exponent, kLog2, Polynomial(kNumerator, m) / Polynomial(kDenominator, m));
  log = y == std::numeric_limits<float>::infinity() ? y : log;
  log = y == 0 ? -std::numeric_limits<float>::infinity() : log;
  return y < 0 ? BitsAs<float>(uint32_t{0xFFC00000}) : log;
}

inline void LogOnePlusLoop(float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = LogOnePlus(values[i]);
}

}  // namespace
}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_LOG_LOOPS_H_
