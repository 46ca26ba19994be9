// Both loops give the same bits: values of all exponents, and those around the place where the polynomials' range is
// split. tests/embedding_cache/test_native_transform.py holds the one that this processor takes against NumPy.
#include "transform/log_loops.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using rankhouse::transform::LogOnePlusAvx2;
using rankhouse::transform::LogOnePlusPlain;

int main() {
  std::mt19937 random(1);
  std::vector<float> values = {0.0f, -0.0f, -1.0f, INFINITY, -INFINITY};
  for (uint32_t upper = 0; upper < 512; ++upper) {
    for (int n = 0; n < 2000; ++n) {
      const uint32_t bits = upper << 23 | (random() & 0x7FFFFF);
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      if (!std::isnan(value)) values.push_back(value);
    }
  }
  for (int exponent = -20; exponent < 60; ++exponent) {
    float value = std::ldexp(std::sqrt(0.5f), exponent) - 1;
    for (int n = 0; n < 50; ++n) value = std::nextafter(value, -2.0f);
    for (int n = 0; n < 100; ++n) values.push_back(value = std::nextafter(value, INFINITY));
  }
  std::vector<float> plain = values, vectors = values;
  LogOnePlusPlain(plain.data(), static_cast<int64_t>(plain.size()));
  LogOnePlusAvx2(vectors.data(), static_cast<int64_t>(vectors.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::memcmp(&plain[i], &vectors[i], sizeof(float)) == 0) continue;
    std::fprintf(stderr, "log(1 + %a) is %a, with vectors %a\n", values[i], plain[i], vectors[i]);
    return 1;
  }
  return 0;
}
