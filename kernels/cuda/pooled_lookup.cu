// Pooled lookup on a GPU: one launch for all tables, whatever their widths and row types.
//
// A block belongs to one feature. Its groups of threads (cuda/segments.cuh) own some neighbouring bags each, and write
// their rows; nobody else does, so the result is always the same bits. Bytes moved: the rows, at random (16 at a time
// per thread where width, stride and address allow), the output written, the ids, offsets and weights read in order.
//
// At width 128 in float32 a warp owns a bag and has 4 rows of 512 bytes in flight. To keep 3.35 TB/s of an H100 busy
// at about 700 ns, each of its 132 processors needs 18 KB in flight, which are 9 such warps; 24 are resident.
#include "cuda/device_lookup.cuh"
#include "cuda/segments.cuh"

namespace rankhouse {
namespace {

// Most bags of a group. More make short bags cheaper, fewer spread small batches over more threads.
constexpr int64_t kBagsPerGroup = 8;

// The bags of one group, as SumSegments sees them: segments are samples, entries are positions of ids.
template <int kColumns>
struct Bags {
  const DeviceLookup& lookup;
  const DeviceFeature& to;
  int32_t index;  // of the feature
  int32_t first_sample;
  int64_t column;
  bool active;
  bool reports;  // bad ids, which it does with the row's first columns
  float weight_sum = DeviceLookup::kNoWeights;

  __device__ Bag bag(int32_t sample) const {
    return lookup.bag(to.feature, index * lookup.batch_size + sample, sample);
  }
  __device__ int32_t End(int32_t sample) const { return static_cast<int32_t>(bag(sample).end); }

  __device__ Entry Resolve(int32_t n) const {
    const Feature& feature = to.feature;
    int64_t row = lookup.id(n);
    if (!feature.Has(row)) row = Replace(n, row);
    return {row >= 0 ? feature.rows + row * feature.stride : nullptr,
            feature.combiner == RH_NONE ? 1.0f : lookup.weight(n)};
  }
  __device__ int64_t Replace(int32_t n, int64_t id) const {
    const int64_t row = to.feature.Row(id);
    if (!reports) return row;
    int32_t sample = first_sample;
    while (End(sample) <= n) ++sample;
    lookup.CountBadId(to.feature, n, index * lookup.batch_size + sample);
    if (row == kFault) lookup.ReportBag(index * lookup.batch_size + sample);
    return row;
  }

  __device__ void Add(float weight) {
    if (lookup.weights != nullptr) weight_sum = DeviceLookup::AddWeight(to.feature.combiner, weight_sum, weight);
  }
  __device__ void Close(int32_t sample, int32_t count, const Columns<kColumns>& sum) {
    const float scale = count == 0 ? 0.0f : lookup.Scale(to.feature.combiner, count, weight_sum);
    weight_sum = DeviceLookup::kNoWeights;
    if (!active) return;
    Columns<kColumns> result;
    for (int c = 0; c < kColumns; ++c) result.value[c] = scale == 0.0f ? 0.0f : sum.value[c] * scale;
    *reinterpret_cast<Columns<kColumns>*>(to.data + sample * to.stride + column) = result;
  }
};

// The same where each id is by itself: segments are entries.
template <int kColumns>
struct SeparateIds : Bags<kColumns> {
  int32_t first_id;  // of the feature

  __device__ SeparateIds(const Bags<kColumns>& bags, int32_t first_id) : Bags<kColumns>(bags), first_id(first_id) {}
  __device__ int32_t End(int32_t n) const { return n + 1; }
  __device__ void Add(float) {}
  __device__ void Close(int32_t n, int32_t, const Columns<kColumns>& sum) {
    if (!this->active) return;
    const DeviceFeature& to = this->to;
    const int32_t k = n - first_id;
    const int32_t hotness = static_cast<int32_t>(to.feature.hotness);
    float* target = this->lookup.offsets != nullptr ? to.data + k * to.stride
                                                    : to.data + k / hotness * to.stride + k % hotness * to.feature.dim;
    *reinterpret_cast<Columns<kColumns>*>(target + this->column) = sum;
  }
};

template <int32_t kType, int kColumns>
__device__ __forceinline__ void PoolBags(const DeviceLookup& lookup, const DeviceFeature& to, int32_t f, int32_t first,
                                         int32_t last) {
  const Group group(to.lanes);
  const int64_t dim = to.feature.dim;
  for (int64_t base = 0; base < dim; base += group.lanes * kColumns) {
    const int64_t column = base + group.lane * kColumns;
    Bags<kColumns> bags = {lookup, to, f, first, column, column < dim, base == 0};
    const int32_t begin = static_cast<int32_t>(bags.bag(first).begin);
    if (to.feature.combiner != RH_NONE) {
      SumSegments<kType, kColumns>(bags, group, first, last, begin, column, dim, column < dim);
      continue;
    }
    const int32_t end = bags.End(last - 1);
    SeparateIds<kColumns> ids(bags, static_cast<int32_t>(lookup.bag(to.feature, f * lookup.batch_size, 0).begin));
    if (begin < end) SumSegments<kType, kColumns>(ids, group, begin, end, begin, column, dim, column < dim);
  }
}

template <int32_t kType, int kVector>
__device__ void PoolBagsBy(const DeviceLookup& lookup, const DeviceFeature& to, int32_t f, int32_t first,
                           int32_t last) {
  to.columns == 1 ? PoolBags<kType, 1>(lookup, to, f, first, last)
                  : PoolBags<kType, kVector>(lookup, to, f, first, last);
}

// kFloat32: all tables are; else a thread needs more registers, and fewer are resident.
template <bool kFloat32>
__global__ void __launch_bounds__(kBlockThreads, kFloat32 ? 3 : 2)
    PoolAll(const __grid_constant__ DeviceLookup lookup) {
  if (GlobalThread() == 0) lookup.CheckEnds();
  const int64_t block = blockIdx.x;
  const int32_t index = lookup.FeatureOf(block);
  const DeviceFeature& to = lookup.features[index];
  const Group group(to.lanes);
  const int64_t first_bag = ((block - to.first_block) * group.per_block() + group.index()) * to.bags_per_group;
  if (first_bag >= lookup.batch_size) return;
  const int32_t first = static_cast<int32_t>(first_bag);
  const int32_t last = static_cast<int32_t>(min(first_bag + to.bags_per_group, lookup.batch_size));
  bool bad = false;
  for (int32_t sample = first + group.lane; sample < last; sample += group.lanes) {
    const int64_t bag = index * lookup.batch_size + sample;
    if (lookup.bag(to.feature, bag, sample).Within(to.feature)) continue;
    lookup.ReportBag(bag);
    bad = true;
  }
  if (group.Any(bad)) return;
  if (kFloat32) return PoolBagsBy<RH_FLOAT32, 4>(lookup, to, index, first, last);
  switch (to.feature.type) {
    case RH_FLOAT32:
      return PoolBagsBy<RH_FLOAT32, 4>(lookup, to, index, first, last);
    case RH_FLOAT16:
      return PoolBagsBy<RH_FLOAT16, 8>(lookup, to, index, first, last);
    case RH_BFLOAT16:
      return PoolBagsBy<RH_BFLOAT16, 8>(lookup, to, index, first, last);
    default:
      return PoolBagsBy<RH_INT8_ROWWISE, 4>(lookup, to, index, first, last);
  }
}

// How many columns of a feature a thread takes at once.
int32_t ColumnsPerLane(const DeviceFeature& to) {
  const Feature& feature = to.feature;
  const bool is_half = feature.type == RH_FLOAT16 || feature.type == RH_BFLOAT16;
  const int64_t vector_bytes = feature.type == RH_INT8_ROWWISE ? 4 : 16;
  const int32_t columns = is_half ? 8 : 4;
  const bool aligned = IsAligned(feature.rows, vector_bytes) && feature.stride % vector_bytes == 0 &&
                       ByFour(to.data, to.stride, feature.dim) && feature.dim % columns == 0;
  return aligned ? columns : 1;
}

// Gives each feature its blocks; returns how many there are.
int64_t ShareBlocks(const Lookup& lookup, std::vector<DeviceFeature>* features) {
  int64_t num_blocks = 0;
  for (DeviceFeature& to : *features) {
    const int64_t num_bags = std::max<int64_t>(1, lookup.raw().num_features * lookup.batch_size());
    const int64_t ids_per_bag = lookup.raw().offsets == nullptr ? to.feature.hotness : lookup.num_ids() / num_bags;
    to.columns = ColumnsPerLane(to);
    to.lanes = LanesPerRow(to.feature.dim, to.columns);
    to.bags_per_group = std::clamp<int64_t>(kBagsPerGroup / std::max<int64_t>(1, ids_per_bag), 1, kBagsPerGroup);
    to.first_block = num_blocks;
    num_blocks += DivideUp(lookup.batch_size(), kBlockThreads / to.lanes * to.bags_per_group);
  }
  return num_blocks;
}

void PooledLookup(const rh_lookup* raw, const rh_feature_rows* out, Workspace workspace, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  lookup.CheckFeatureRows(out, "out");
  const LookupWorkspace parts(&workspace, lookup);
  std::vector<DeviceFeature> features = MakeDeviceFeatures(lookup, out);
  const int64_t num_blocks = ShareBlocks(lookup, &features);
  const bool float32 = std::all_of(features.begin(), features.end(),
                                   [](const DeviceFeature& to) { return to.feature.type == RH_FLOAT32; });
  Launch(float32 ? PoolAll<true> : PoolAll<false>, num_blocks, stream, parts.Fill(lookup, features, stream));
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_workspace_cuda(const rh_lookup* lookup, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes != nullptr, "bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::LookupWorkspace(&workspace, rankhouse::Lookup(lookup, rankhouse::Lookup::Memory::kDevice));
    *bytes = workspace.used();
  });
}

int rh_pooled_lookup_cuda(const rh_lookup* lookup, const rh_feature_rows* out, void* workspace, int64_t workspace_bytes,
                          void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::PooledLookup(lookup, out, rankhouse::Workspace(workspace, workspace_bytes),
                            static_cast<cudaStream_t>(stream));
  });
}
