// A lookup's way to the device, and what its kernels found back to the host.
#include "core/update.h"
#include "cuda/device_lookup.cuh"

namespace rankhouse {

std::vector<DeviceFeature> MakeDeviceFeatures(const Lookup& lookup, const rh_feature_rows* rows) {
  std::vector<DeviceFeature> features;
  for (const Feature& feature : lookup.features()) {
    const rh_feature_rows& row = rows[features.size()];
    features.push_back({feature, row.data, row.stride, 0, 1, 1, 1});
  }
  return features;
}

DeviceLookup LookupWorkspace::Fill(const Lookup& lookup, const std::vector<DeviceFeature>& host,
                                   cudaStream_t stream) const {
  ClearFaults(faults, kNumLookupFaults, stream);
  if (lookup.num_tables() > 0) {
    CheckCuda(cudaMemsetAsync(counts, 0, lookup.num_tables() * sizeof(*counts), stream), "clearing the workspace");
    CheckCuda(cudaMemsetAsync(firsts, 0xff, lookup.num_tables() * sizeof(*firsts), stream), "clearing the workspace");
    CheckCuda(cudaMemsetAsync(last_steps, 0xff, lookup.num_tables() * sizeof(*last_steps), stream),
              "clearing the workspace");
  }
  Upload(features, host, stream);
  const rh_lookup& raw = lookup.raw();
  return {features,    raw.ids,          raw.weights, raw.offsets,   raw.batch_size, raw.num_features * raw.batch_size,
          raw.num_ids, raw.num_features, raw.id_type, raw.weighting, faults,         counts,
          firsts,      last_steps};
}

namespace {

Bag BagOnDevice(const Lookup& lookup, int64_t index, cudaStream_t stream) {
  const Feature& feature = lookup.features()[index / lookup.batch_size()];
  if (lookup.raw().offsets == nullptr) return lookup.bag(feature, index % lookup.batch_size());
  Bag bag;
  CopyToHost(&bag.begin, lookup.raw().offsets + index, 2, stream);
  return bag;
}

// The ids at the positions of a bag, in their type.
std::vector<char> IdsOnDevice(const Lookup& lookup, Bag bag, cudaStream_t stream) {
  const int64_t size = lookup.raw().id_type == RH_INT32 ? sizeof(int32_t) : sizeof(int64_t);
  std::vector<char> ids((bag.end - bag.begin) * size);
  CopyToHost(ids.data(), static_cast<const char*>(lookup.raw().ids) + bag.begin * size,
             static_cast<int64_t>(ids.size()), stream);
  return ids;
}

void FillBadIds(const Lookup& lookup, const LookupWorkspace& parts, rh_bad_ids* bad_ids, cudaStream_t stream) {
  std::vector<unsigned long long> counts(lookup.num_tables());
  std::vector<FirstBadId> firsts(lookup.num_tables());
  CopyToHost(counts.data(), parts.counts, lookup.num_tables(), stream);
  CopyToHost(firsts.data(), parts.firsts, lookup.num_tables(), stream);
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    bad_ids[t] = {};
    if (counts[t] == 0) continue;
    const int64_t bag = static_cast<int64_t>(firsts[t].bag);
    const int64_t position = static_cast<int64_t>(firsts[t].position);
    const std::vector<char> id = IdsOnDevice(lookup, {position, position + 1}, stream);
    bad_ids[t] = {static_cast<int64_t>(counts[t]), bag / lookup.batch_size(), bag % lookup.batch_size(),
                  position - BagOnDevice(lookup, bag, stream).begin,
                  lookup.raw().id_type == RH_INT32 ? *reinterpret_cast<const int32_t*>(id.data())
                                                   : *reinterpret_cast<const int64_t*>(id.data())};
  }
}

// Throws what the kernels found wrong.
void CheckLookup(const rh_lookup* raw, const void* data, rh_bad_ids* bad_ids, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  Workspace workspace = Workspace::Of(data);
  const LookupWorkspace parts(&workspace, lookup);
  if (bad_ids != nullptr) FillBadIds(lookup, parts, bad_ids, stream);
  Fault faults[kNumLookupFaults];
  CopyToHost(faults, parts.faults, kNumLookupFaults, stream);
  if (faults[kBadEnds] != kNoFault) {
    int64_t ends[2];
    CopyToHost(ends, raw->offsets, 1, stream);
    CopyToHost(ends + 1, raw->offsets + raw->num_features * raw->batch_size, 1, stream);
    throw Error(RH_INVALID_ARGUMENT, StrCat("offsets run from ", ends[0], " to ", ends[1],
                                            ": expected 0 to the number of ids, ", raw->num_ids));
  }
  if (faults[kBadBag] != kNoFault) {
    const int64_t index = static_cast<int64_t>(faults[kBadBag]);
    const int64_t f = index / lookup.batch_size();
    const Bag bag = BagOnDevice(lookup, index, stream);
    const bool readable = bag.Within(lookup.features()[f]);
    const std::vector<char> ids = readable ? IdsOnDevice(lookup, bag, stream) : std::vector<char>();
    ThrowFault(lookup, f, index % lookup.batch_size(), bag, ids.data());
  }
  Require(faults[kSmallCapacity] == kNoFault, "the gradient of table ", faults[kSmallCapacity],
          " has more unique ids than its capacity: give min(ids of the table, its rows)");
  if (faults[kLastStep] == kNoFault) return;
  const int32_t t = static_cast<int32_t>(faults[kLastStep]);
  BadLastStep bad;
  CopyToHost(&bad, parts.last_steps + t, 1, stream);
  int32_t last_step = 0;
  CopyToHost(&last_step, bad.last_steps + bad.row, 1, stream);
  rh_optimizer optimizer = {};
  optimizer.step = bad.step;
  rh_update update = {};
  update.optimizer = &optimizer;
  ThrowLastStepFault(update, t, static_cast<int64_t>(bad.row), last_step);
}

}  // namespace
}  // namespace rankhouse

int rh_built_with_cuda(void) { return 1; }

int rh_lookup_check_cuda(const rh_lookup* lookup, const void* workspace, rh_bad_ids* bad_ids, void* stream) {
  return rankhouse::Guard(
      [&] { rankhouse::CheckLookup(lookup, workspace, bad_ids, static_cast<cudaStream_t>(stream)); });
}
