// Pooled lookup on a GPU: one launch for all tables.
//
// A group of threads (a power of two up to a warp) owns a bag, and each thread of it some columns, which it adds up in
// the order of the bag's ids. Nobody else writes them and no thread waits for another, so the result is always the same
// bits. Bytes moved: N * D * 4 of rows (16 at a time where widths and addresses allow), B * E * 4 written, 8 per id and
// bag.
#include "cuda/device.cuh"
#include "cuda/device_lookup.cuh"

namespace rankhouse {
namespace {

template <int kColumns>
__global__ void PoolBags(DeviceLookup lookup, int lanes, float* out) {
  const int64_t index = GlobalThread() / lanes;
  const int lane = threadIdx.x % lanes;
  if (index >= lookup.num_bags) return;
  const int64_t f = index / lookup.batch_size;
  const int64_t sample = index % lookup.batch_size;
  const Feature feature = lookup.features[f];
  const Bag bag = lookup.bag(feature, index, sample);
  if (!bag.Within(feature)) return lookup.ReportBag(index);
  const float scale = feature.mean && bag.end > bag.begin ? 1.0f / static_cast<float>(bag.end - bag.begin) : 1.0f;
  for (int64_t column = lane * kColumns; column < feature.dim; column += lanes * kColumns) {
    Columns<kColumns> sum = {};
    for (int64_t n = bag.begin; n < bag.end; ++n) {
      const int64_t id = lookup.ids[n];
      if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(feature.num_rows)) return lookup.ReportBag(index);
      const auto row = *reinterpret_cast<const Columns<kColumns>*>(feature.rows + id * feature.dim + column);
      for (int c = 0; c < kColumns; ++c) sum.value[c] = n == bag.begin ? row.value[c] : sum.value[c] + row.value[c];
    }
    for (int c = 0; c < kColumns; ++c) sum.value[c] *= scale;
    *reinterpret_cast<Columns<kColumns>*>(out + sample * lookup.width + feature.column + column) = sum;
  }
}

void PooledLookup(const rh_lookup* raw, float* out, void* workspace_data, int64_t workspace_bytes,
                  cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  Workspace workspace(workspace_data, workspace_bytes);
  const DeviceLookup device = LookupWorkspace(&workspace, lookup).Fill(lookup, raw->offsets, stream);
  bool by_four = IsAligned(out);
  int64_t max_dim = 1;
  for (const Feature& feature : lookup.features()) {
    by_four = by_four && feature.dim % 4 == 0 && IsAligned(feature.rows);
    max_dim = std::max(max_dim, feature.dim);
  }
  const int lanes = LanesPerRow(max_dim, by_four ? 4 : 1);
  Launch(by_four ? PoolBags<4> : PoolBags<1>, device.num_bags * lanes, stream, device, lanes, out);
}

// Throws what the kernels found wrong.
void CheckLookup(const rh_lookup* raw, const void* workspace, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  Require(workspace != nullptr, "workspace is NULL");
  Fault faults[kNumLookupFaults];
  CopyToHost(faults, static_cast<const Fault*>(workspace), kNumLookupFaults, stream);
  if (faults[kBadBag] != kNoFault) {
    const int64_t index = static_cast<int64_t>(faults[kBadBag]);
    const int64_t f = index / lookup.batch_size();
    const int64_t sample = index % lookup.batch_size();
    const Feature& feature = lookup.features()[f];
    Bag bag = {feature.first_id + sample * feature.hotness, feature.first_id + (sample + 1) * feature.hotness};
    if (raw->offsets != nullptr) CopyToHost(&bag.begin, raw->offsets + index, 2, stream);
    std::vector<int64_t> ids;
    if (bag.Within(feature)) {
      ids.resize(bag.end - bag.begin);
      CopyToHost(ids.data(), raw->ids + bag.begin, bag.end - bag.begin, stream);
    }
    ThrowFault(lookup, f, sample, bag, ids.data());
  }
  Require(faults[kSmallCapacity] == kNoFault, "the gradient of table ", faults[kSmallCapacity],
          " has more unique ids than its capacity: give min(ids of the table, its rows)");
}

}  // namespace
}  // namespace rankhouse

int rh_built_with_cuda(void) { return 1; }

int rh_pooled_lookup_workspace_cuda(const rh_lookup* lookup, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes != nullptr, "bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::LookupWorkspace(&workspace, rankhouse::Lookup(lookup, rankhouse::Lookup::Memory::kDevice));
    *bytes = workspace.used();
  });
}

int rh_pooled_lookup_cuda(const rh_lookup* lookup, float* out, void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard(
      [&] { rankhouse::PooledLookup(lookup, out, workspace, workspace_bytes, static_cast<cudaStream_t>(stream)); });
}

int rh_lookup_check_cuda(const rh_lookup* lookup, const void* workspace, void* stream) {
  return rankhouse::Guard([&] { rankhouse::CheckLookup(lookup, workspace, static_cast<cudaStream_t>(stream)); });
}
