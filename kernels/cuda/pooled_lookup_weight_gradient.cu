// The gradient of a lookup's weights on a GPU: a warp owns a bag.
//
// First the product of each id's row with the bag's gradient, which the lanes add up pairwise, always in the same
// order, while the rows of kUnroll ids are in flight; then, where the divisor depends on the weights, what that adds.
// Bytes moved: the rows at random, the gradient, ids and weights once more than that, 8 per id written.
#include "cuda/device_lookup.cuh"
#include "cuda/segments.cuh"

namespace rankhouse {
namespace {

struct WeightGradient {
  DeviceLookup lookup;
  float* out;  // [N]
};

// The row of an id, or NULL for one of zeros; reports what is no row.
__device__ const char* RowOf(const DeviceLookup& lookup, const Feature& feature, int64_t n, int64_t bag) {
  const int64_t row = feature.Row(lookup.id(n));
  if (row == kFault) lookup.ReportBag(bag);
  return row >= 0 ? feature.rows + row * feature.stride : nullptr;
}

template <int32_t kType, int kColumns>
__device__ void WriteProducts(const WeightGradient& all, const DeviceFeature& from, const float* gradient, Bag bag,
                              int64_t index) {
  using Part = Columns<kColumns>;
  const Group group(32);
  const Feature& feature = from.feature;
  for (int64_t n = bag.begin; n < bag.end; n += kUnroll) {
    const char* rows[kUnroll];
    float sums[kUnroll] = {};
    for (int u = 0; u < kUnroll; ++u) {
      rows[u] = n + u < bag.end ? RowOf(all.lookup, feature, n + u, index) : nullptr;
    }
    for (int64_t column = group.lane * kColumns; column < feature.dim; column += group.lanes * kColumns) {
      const Part g = *reinterpret_cast<const Part*>(gradient + column);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (rows[u] == nullptr) continue;
        RowPart<kType, kColumns> x;
        x.Load(rows[u], column, feature.dim);
        for (int c = 0; c < kColumns; ++c) sums[u] += g.value[c] * x[c];
      }
    }
    for (int u = 0; u < kUnroll; ++u) {
      const float product = group.Sum(sums[u]);
      if (n + u < bag.end && group.lane == 0) all.out[n + u] = product;
    }
  }
  __syncwarp(group.mask);
}

template <int32_t kType>
__device__ void WriteProductsOf(const WeightGradient& all, const DeviceFeature& from, const float* gradient, Bag bag,
                                int64_t index) {
  from.columns == 4 ? WriteProducts<kType, 4>(all, from, gradient, bag, index)
                    : WriteProducts<kType, 1>(all, from, gradient, bag, index);
}

// From the products g . x of a bag: the gradient of its weights.
__device__ void DivideProducts(const WeightGradient& all, int32_t combiner, Bag bag) {
  const DeviceLookup& lookup = all.lookup;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool by_weights = lookup.DividesByWeights(combiner);
  float weight_sum = DeviceLookup::kNoWeights;
  float pooled = 0.0f;  // the sum of weight * (g . x): the divisor times g . y
  for (int64_t n = bag.begin; by_weights && n < bag.end; ++n) {
    weight_sum = DeviceLookup::AddWeight(combiner, weight_sum, lookup.weights[n]);
    pooled += lookup.weights[n] * all.out[n];
  }
  __syncwarp(0xffffffffu);  // all lanes have read all products
  const float scale = combiner == RH_NONE ? 0.0f : lookup.Scale(combiner, bag.end - bag.begin, weight_sum);
  for (int64_t n = bag.begin + lane; n < bag.end; n += 32) {
    const float product = all.out[n];
    float gradient = product * scale;
    if (by_weights && combiner == RH_MEAN) gradient = (product - pooled * scale) * scale;
    if (by_weights && combiner == RH_SQRTN) gradient -= lookup.weights[n] * (pooled * scale) / weight_sum;
    all.out[n] = scale == 0.0f ? 0.0f : gradient;
  }
}

__global__ void WriteWeightGradient(const __grid_constant__ WeightGradient all) {
  const DeviceLookup& lookup = all.lookup;
  if (GlobalThread() == 0) lookup.CheckEnds();
  const int64_t index = GlobalThread() / 32;
  if (index >= lookup.num_bags) return;
  const int64_t f = index / lookup.batch_size;
  const int64_t sample = index - f * lookup.batch_size;
  const DeviceFeature& from = lookup.features[f];
  const Feature& feature = from.feature;
  const Bag bag = lookup.bag(feature, index, sample);
  if (!bag.Within(feature)) {
    if (threadIdx.x % 32 == 0) lookup.ReportBag(index);
    return;
  }
  if (feature.combiner != RH_NONE) {
    const float* gradient = from.data + sample * from.stride;
    switch (feature.type) {
      case RH_FLOAT16:
        WriteProductsOf<RH_FLOAT16>(all, from, gradient, bag, index);
        break;
      case RH_BFLOAT16:
        WriteProductsOf<RH_BFLOAT16>(all, from, gradient, bag, index);
        break;
      default:
        WriteProductsOf<RH_FLOAT32>(all, from, gradient, bag, index);
    }
  }
  if (feature.combiner == RH_NONE) {
    for (int64_t n = bag.begin + threadIdx.x % 32; n < bag.end; n += 32) {
      RowOf(lookup, feature, n, index);
      all.out[n] = 0.0f;
    }
    return;
  }
  DivideProducts(all, feature.combiner, bag);
}

void PooledLookupWeightGradient(const rh_lookup* raw, const rh_feature_rows* grad, float* weight_grad,
                                Workspace workspace, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  lookup.CheckFeatureRows(grad, "grad");
  Require(lookup.num_ids() == 0 || (lookup.weights() != nullptr && weight_grad != nullptr),
          "weights or weight_grad is NULL: the gradient of weights needs both");
  const LookupWorkspace parts(&workspace, lookup);
  std::vector<DeviceFeature> features = MakeDeviceFeatures(lookup, grad);
  for (DeviceFeature& from : features) {
    const Feature& feature = from.feature;
    Require(feature.type != RH_INT8_ROWWISE, "table ", feature.table,
            " has rows of row-wise int8: the gradient of weights takes float32, float16 or bfloat16 rows");
    const int64_t vector_bytes = feature.type == RH_FLOAT32 ? 16 : 8;
    const bool by_four = ByFour(from.data, from.stride, feature.dim) && IsAligned(feature.rows, vector_bytes) &&
                         feature.stride % vector_bytes == 0;
    from.columns = by_four ? 4 : 1;
  }
  const DeviceLookup device = parts.Fill(lookup, features, stream);
  Launch(WriteWeightGradient, DivideUp(device.num_bags * 32, kBlockThreads), stream,
         WeightGradient{device, weight_grad});
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_weight_gradient_cuda(const rh_lookup* lookup, const rh_feature_rows* grad, float* weight_grad,
                                          void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::PooledLookupWeightGradient(lookup, grad, weight_grad, rankhouse::Workspace(workspace, workspace_bytes),
                                          static_cast<cudaStream_t>(stream));
  });
}
