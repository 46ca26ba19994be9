// A Lookup as kernels see it.
#ifndef RANKHOUSE_CUDA_DEVICE_LOOKUP_CUH_
#define RANKHOUSE_CUDA_DEVICE_LOOKUP_CUH_

#include "core/lookup.h"
#include "cuda/device.cuh"

namespace rankhouse {

// What makes a call fail, one Fault each, at the beginning of its workspace.
enum LookupFault {
  kBadEnds = 0,        // 0 where the offsets do not run from 0 to the number of ids
  kBadBag = 1,         // the first bag with bad offsets or an id that the table's policy does not allow
  kSmallCapacity = 2,  // the first table whose gradient has too little room
  kLastStep = 3,       // the first table with a BadLastStep
  kNumLookupFaults = 4
};

// The first id of a table that is none of its rows.
struct FirstBadId {
  Fault position;
  Fault bag;  // always that of `position`, since bags lie in the order of positions
};

// The first row of a table whose last step an update with RH_EXACT cannot follow.
struct BadLastStep {
  Fault row;
  const int32_t* last_steps;  // the table's
  int64_t step;               // the update's
};

// A feature, where its rows go to or its gradient comes from, and how a launch shares them among threads.
struct DeviceFeature {
  Feature feature;
  float* data;
  int64_t stride;
  int64_t first_block;  // it has the blocks from here to the next feature's
  int32_t lanes;
  int32_t columns;
  int64_t bags_per_group;
};

struct DeviceLookup {
  const DeviceFeature* features;  // [F]
  const void* ids;
  const float* weights;    // or NULL
  const int64_t* offsets;  // or NULL
  int64_t batch_size;
  int64_t num_bags;
  int64_t num_ids;
  int32_t num_features;
  int32_t id_type;
  int32_t weighting;
  Fault* faults;               // [kNumLookupFaults]
  unsigned long long* counts;  // [T] of bad ids
  FirstBadId* firsts;          // [T]
  BadLastStep* last_steps;     // [T]

  __device__ int64_t id(int64_t n) const {
    return id_type == RH_INT32 ? static_cast<const int32_t*>(ids)[n] : static_cast<const int64_t*>(ids)[n];
  }
  __device__ float weight(int64_t n) const { return weights == nullptr ? 1.0f : weights[n]; }

  // The feature that a block belongs to.
  __device__ int32_t FeatureOf(int64_t block) const {
    return LastNotAbove(num_features, block, [this](int32_t f) { return features[f].first_block; });
  }

  __device__ Bag bag(const Feature& feature, int64_t index, int64_t sample) const {
    if (offsets != nullptr) return {offsets[index], offsets[index + 1]};
    const int64_t begin = feature.first_id + sample * feature.hotness;
    return {begin, begin + feature.hotness};
  }

  // True where a bag's weights, not its size, make its divisor.
  __device__ bool DividesByWeights(int32_t combiner) const {
    return weights != nullptr && weighting == RH_WEIGHTING_TENSORFLOW && (combiner == RH_MEAN || combiner == RH_SQRTN);
  }
  // What a bag's weights, or for RH_SQRTN their squares, are added to, and one more.
  static constexpr float kNoWeights = -0.0f;
  __device__ static float AddWeight(int32_t combiner, float sum, float weight) {
    return sum + (combiner == RH_SQRTN ? weight * weight : weight);
  }
  // What a bag's sum is multiplied with: 1 / its divisor. 0 stands for a result of zeros.
  __device__ float Scale(int32_t combiner, int64_t count, float weight_sum) const {
    if (combiner != RH_MEAN && combiner != RH_SQRTN) return 1.0f;
    const float size = DividesByWeights(combiner) ? weight_sum : static_cast<float>(count);
    const float divisor = combiner == RH_MEAN ? size : sqrtf(size);
    return divisor == 0.0f ? 0.0f : 1.0f / divisor;
  }

  __device__ bool Failed() const {
    bool failed = false;
    for (int fault = 0; fault < kNumLookupFaults; ++fault) failed = failed || faults[fault] != kNoFault;
    return failed;
  }
  __device__ void ReportBag(int64_t index) const { atomicMin(&faults[kBadBag], static_cast<Fault>(index)); }
  __device__ void CountBadId(const Feature& feature, int64_t position, int64_t bag_index) const {
    atomicAdd(&counts[feature.table], 1ull);
    atomicMin(&firsts[feature.table].position, static_cast<Fault>(position));
    atomicMin(&firsts[feature.table].bag, static_cast<Fault>(bag_index));
  }
  // For one thread of a launch.
  __device__ void CheckEnds() const {
    if (offsets != nullptr && (offsets[0] != 0 || offsets[num_bags] != num_ids)) atomicMin(&faults[kBadEnds], Fault{0});
  }
};

// The part of a workspace that every lookup has, at its beginning.
struct LookupWorkspace {
  LookupWorkspace(Workspace* workspace, const Lookup& lookup)
      : faults(workspace->Take<Fault>(kNumLookupFaults)),
        counts(workspace->Take<unsigned long long>(lookup.num_tables())),
        firsts(workspace->Take<FirstBadId>(lookup.num_tables())),
        last_steps(workspace->Take<BadLastStep>(lookup.num_tables())),
        features(workspace->Take<DeviceFeature>(static_cast<int64_t>(lookup.features().size()))) {
    // Kernels count them in 32 bits.
    Require(lookup.num_ids() <= kMostIds, "there are ", lookup.num_ids(), " ids: expected at most ", kMostIds,
            " in one call on a GPU");
  }

  // Clears what kernels report, and uploads the features.
  DeviceLookup Fill(const Lookup& lookup, const std::vector<DeviceFeature>& host, cudaStream_t stream) const;

  static constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max() - kBlockThreads;

  Fault* faults;
  unsigned long long* counts;
  FirstBadId* firsts;
  BadLastStep* last_steps;
  DeviceFeature* features;
};

// The features of a lookup with their rows in device memory; no blocks yet.
std::vector<DeviceFeature> MakeDeviceFeatures(const Lookup& lookup, const rh_feature_rows* rows);

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_DEVICE_LOOKUP_CUH_
