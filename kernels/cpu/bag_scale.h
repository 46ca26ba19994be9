// What the gradient of a bag is multiplied with.
#ifndef RANKHOUSE_CPU_BAG_SCALE_H_
#define RANKHOUSE_CPU_BAG_SCALE_H_

#include <cmath>

#include "core/lookup.h"

namespace rankhouse {

// Without weights.
inline float ScaleOf(int32_t combiner, int64_t num_ids) {
  const float count = static_cast<float>(num_ids);
  if (combiner == RH_MEAN) return 1.0f / count;
  return combiner == RH_SQRTN ? 1.0f / std::sqrt(count) : 1.0f;
}

// With TensorFlow's weighting. The order of adding is the forward's.
inline float WeightedScaleOf(int32_t combiner, const float* weights, int64_t num_ids) {
  float sum = -0.0f;  // unlike 0 it leaves a first weight of -0 alone
  for (int64_t k = 0; k < num_ids; ++k) sum += combiner == RH_SQRTN ? weights[k] * weights[k] : weights[k];
  const float divisor = combiner == RH_SQRTN ? std::sqrt(sum) : sum;
  return divisor == 0.0f ? 0.0f : 1.0f / divisor;
}

// Of a feature that may have weights; each id's weight comes on top.
inline float BagScale(const Lookup& lookup, const Feature& feature, Bag bag) {
  const float* weights = lookup.weights();
  const bool by_weights = weights != nullptr && lookup.raw().weighting == RH_WEIGHTING_TENSORFLOW &&
                          (feature.combiner == RH_MEAN || feature.combiner == RH_SQRTN);
  const int64_t num_ids = bag.end - bag.begin;
  return by_weights ? WeightedScaleOf(feature.combiner, weights + bag.begin, num_ids)
                    : ScaleOf(feature.combiner, num_ids);
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_BAG_SCALE_H_
