// A Lookup as kernels see it.
#ifndef RANKHOUSE_CUDA_DEVICE_LOOKUP_CUH_
#define RANKHOUSE_CUDA_DEVICE_LOOKUP_CUH_

#include "core/lookup.h"
#include "cuda/device.cuh"

namespace rankhouse {

// What can go wrong in a lookup, one Fault each, at the beginning of its workspace.
enum LookupFault { kBadBag = 0, kSmallCapacity = 1, kNumLookupFaults = 2 };

struct DeviceLookup {
  const Feature* features;  // [F]
  const int64_t* ids;
  const int64_t* offsets;  // or NULL
  int64_t batch_size;
  int64_t width;
  int64_t num_bags;
  Fault* faults;  // [kNumLookupFaults]

  __device__ Bag bag(const Feature& feature, int64_t index, int64_t sample) const {
    if (offsets != nullptr) return {offsets[index], offsets[index + 1]};
    const int64_t begin = feature.first_id + sample * feature.hotness;
    return {begin, begin + feature.hotness};
  }

  __device__ void ReportBag(int64_t index) const { atomicMin(&faults[kBadBag], static_cast<Fault>(index)); }
};

// The part of a workspace that every lookup has, at its beginning.
struct LookupWorkspace {
  LookupWorkspace(Workspace* workspace, const Lookup& lookup)
      : faults(workspace->Take<Fault>(kNumLookupFaults)),
        features(workspace->Take<Feature>(static_cast<int64_t>(lookup.features().size()))) {}

  // Clears the faults and copies the features.
  DeviceLookup Fill(const Lookup& lookup, const int64_t* offsets, cudaStream_t stream) const {
    const int64_t num_features = static_cast<int64_t>(lookup.features().size());
    ClearFaults(faults, kNumLookupFaults, stream);
    CopyToDevice(features, lookup.features().data(), num_features, stream);
    return {features, lookup.ids(), offsets, lookup.batch_size(), lookup.width(), num_features * lookup.batch_size(),
            faults};
  }

  Fault* faults;
  Feature* features;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_DEVICE_LOOKUP_CUH_
