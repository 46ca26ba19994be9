// The gradient of a lookup's weights on the CPU.
//
// A thread owns a block of samples and writes the gradients of their ids. A product of two rows has one order: 16 sums
// side by side, then these one after the other. Bytes moved: the rows, read at random (prefetched), grad, ids and
// weights read and the result written in order.
#include <algorithm>
#include <cmath>

#include "core/lookup.h"
#include "core/row_types.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

constexpr int64_t kLanes = 16;

template <typename Row>
RH_INLINE float Dot(const float* __restrict a, const Row& b, int64_t dim) {
  float sums[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  for (int64_t lane = 0; d + lane < dim; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  float sum = sums[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) sum += sums[lane];
  return sum;
}

// products [a bag's ids] = the bag's gradient . each id's row. Returns false at an id that is an error.
template <typename Row>
RH_INLINE bool MultiplyRowsOf(const Lookup& lookup, const Feature& feature, Bag bag, const float* grad,
                              float* products) {
  for (int64_t n = bag.begin; n < bag.end; ++n) {
    if (n + kPrefetchRows < feature.last_id) {
      const uintptr_t row =
          static_cast<uintptr_t>(lookup.id(n + kPrefetchRows)) * static_cast<uintptr_t>(feature.stride);
      PrefetchRow(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(feature.rows) + row), 0, feature.stride);
    }
    const int64_t row = feature.Row(lookup.id(n));
    if (row == kFault) return false;
    products[n - bag.begin] = 0.0f;
    if (row == kZeroRow || grad == nullptr) continue;
    products[n - bag.begin] = Dot(grad, Row(feature.rows + row * feature.stride, feature.dim), feature.dim);
  }
  return true;
}

RH_SIMD bool MultiplyRows(const Lookup& lookup, const Feature& feature, Bag bag, const float* grad, float* products) {
  switch (feature.type) {
    case RH_FLOAT16:
      return MultiplyRowsOf<Float16Row>(lookup, feature, bag, grad, products);
    case RH_BFLOAT16:
      return MultiplyRowsOf<BFloat16Row>(lookup, feature, bag, grad, products);
    default:
      return MultiplyRowsOf<Float32Row>(lookup, feature, bag, grad, products);
  }
}

// From products to gradients, by the derivatives that lookup.h gives.
void DivideProducts(const Lookup& lookup, const Feature& feature, Bag bag, float* gradients) {
  const int64_t num_ids = bag.end - bag.begin;
  const float* weights = lookup.weights() + bag.begin;
  if (feature.combiner == RH_SUM || feature.combiner == RH_NONE || num_ids == 0) return;
  if (lookup.raw().weighting == RH_WEIGHTING_FBGEMM) {
    const float count = static_cast<float>(num_ids);
    const float scale = 1.0f / (feature.combiner == RH_SQRTN ? std::sqrt(count) : count);
    for (int64_t n = 0; n < num_ids; ++n) gradients[n] *= scale;
    return;
  }
  const bool is_mean = feature.combiner == RH_MEAN;
  float divisor = 0.0f;  // of RH_SQRTN: its square
  float sum = 0.0f;      // grad . the bag's sum
  for (int64_t n = 0; n < num_ids; ++n) {
    divisor += is_mean ? weights[n] : weights[n] * weights[n];
    sum += weights[n] * gradients[n];
  }
  if (divisor == 0.0f) {
    std::fill_n(gradients, num_ids, 0.0f);
    return;
  }
  const float scale = 1.0f / (is_mean ? divisor : std::sqrt(divisor));
  const float pooled = sum * scale / divisor;  // grad . the pooled row, over the divisor
  for (int64_t n = 0; n < num_ids; ++n) {
    gradients[n] = is_mean ? gradients[n] * scale - pooled : gradients[n] * scale - weights[n] * pooled;
  }
}

void WeightGradient(const rh_lookup* raw, const rh_feature_rows* grad, float* weight_grad,
                    const rh_executor* executor) {
  const Lookup lookup(raw);
  lookup.CheckTableRows();
  lookup.CheckFeatureRows(grad, "grad");
  Require(lookup.num_ids() == 0 || (lookup.weights() != nullptr && weight_grad != nullptr),
          "weights or weight_grad is NULL: the gradient of weights needs both");
  int64_t cost = 1;
  for (const Feature& feature : lookup.features()) {
    Require(feature.type != RH_INT8_ROWWISE, "table ", feature.table,
            " has rows of row-wise int8: the gradient of weights takes float32, float16 or bfloat16 rows");
    cost += (feature.last_id - feature.first_id) * (20 + feature.dim / 3) / std::max<int64_t>(1, lookup.batch_size());
  }
  FirstFault fault;
  ParallelFor(executor, lookup.batch_size(), cost, [&](int64_t begin, int64_t end) {
    for (const Feature& feature : lookup.features()) {
      const rh_feature_rows& rows = grad[&feature - lookup.features().data()];
      for (int64_t sample = begin; sample < end; ++sample) {
        const Bag bag = lookup.bag(feature, sample);
        const float* row = feature.combiner == RH_NONE ? nullptr : rows.data + sample * rows.stride;
        if (!bag.Within(feature) || !MultiplyRows(lookup, feature, bag, row, weight_grad + bag.begin)) {
          fault.Report(lookup, feature, sample);
          break;
        }
        DivideProducts(lookup, feature, bag, weight_grad + bag.begin);
      }
    }
  });
  fault.Check(lookup);
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_weight_gradient(const rh_lookup* lookup, const rh_feature_rows* grad, float* weight_grad,
                                     const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::WeightGradient(lookup, grad, weight_grad, executor); });
}
