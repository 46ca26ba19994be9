// Pooled lookup on the CPU.
//
// A thread owns a block of samples: it writes their whole output rows, feature by feature, and nobody else does. Every
// sum runs over one bag in the order of its ids, so threads cannot change a bit of it. Bytes moved: N * D * 4 of rows
// read at random (prefetched), B * E * 4 written, 8 per id and bag read in order.
#include <algorithm>
#include <cstring>

#include "core/lookup.h"
#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

// A block's outputs should stay in the L2 cache while its features are written next to each other.
constexpr int64_t kBlockFloats = 64 * 1024;

// Pools one bag into out [dim]. Returns false at an id that is out of range.
RH_INLINE bool PoolBag(const Feature& feature, const Lookup& lookup, Bag bag, int64_t dim, float* __restrict out) {
  const int64_t* ids = lookup.ids<int64_t>();
  const float* rows = reinterpret_cast<const float*>(feature.rows);
  if (bag.begin == bag.end) std::memset(out, 0, dim * sizeof(float));
  for (int64_t n = bag.begin; n < bag.end; ++n) {
    const int64_t id = ids[n];
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(feature.num_rows)) return false;
    if (n + kPrefetchRows < feature.last_id) PrefetchRow(rows, ids[n + kPrefetchRows], dim);
    const float* __restrict row = rows + id * dim;
    if (n == bag.begin) {
      for (int64_t d = 0; d < dim; ++d) out[d] = row[d];
    } else {
      for (int64_t d = 0; d < dim; ++d) out[d] += row[d];
    }
  }
  if (feature.combiner == RH_MEAN && bag.end - bag.begin > 1) {
    const float scale = 1.0f / static_cast<float>(bag.end - bag.begin);
    for (int64_t d = 0; d < dim; ++d) out[d] *= scale;
  }
  return true;
}

// kDim is the width where it is known at compile time, else 0.
template <int64_t kDim>
RH_INLINE void PoolSamples(const Lookup& lookup, const Feature& feature, int64_t begin, int64_t end,
                           const rh_feature_rows& out, FirstFault* fault) {
  const int64_t dim = kDim > 0 ? kDim : feature.dim;
  float* row = out.data + begin * out.stride;
  for (int64_t sample = begin; sample < end; ++sample, row += out.stride) {
    const Bag bag = lookup.bag(feature, sample);
    if (!bag.Within(feature) || !PoolBag(feature, lookup, bag, dim, row)) {
      fault->Report(lookup, feature, sample);
      return;
    }
  }
}

RH_SIMD void PoolBlock(const Lookup& lookup, int64_t begin, int64_t end, const rh_feature_rows* outs,
                       FirstFault* fault) {
  for (const Feature& feature : lookup.features()) {
    const rh_feature_rows& out = outs[&feature - lookup.features().data()];
    switch (feature.dim) {
      case 16:
        PoolSamples<16>(lookup, feature, begin, end, out, fault);
        break;
      case 32:
        PoolSamples<32>(lookup, feature, begin, end, out, fault);
        break;
      case 64:
        PoolSamples<64>(lookup, feature, begin, end, out, fault);
        break;
      case 128:
        PoolSamples<128>(lookup, feature, begin, end, out, fault);
        break;
      default:
        PoolSamples<0>(lookup, feature, begin, end, out, fault);
    }
  }
}

void PooledLookup(const rh_lookup* raw, const rh_feature_rows* out, const rh_executor* executor) {
  const Lookup lookup(raw);
  lookup.CheckFeatureRows(out, "out");
  if (lookup.batch_size() == 0 || lookup.features().empty()) return;
  FirstFault fault;
  int64_t width = 0;
  for (const Feature& feature : lookup.features()) width += feature.dim;
  const int64_t block = std::clamp<int64_t>(kBlockFloats / width, 1, 1024);
  const int64_t cost = 16 * lookup.num_ids() / lookup.batch_size() + width / 4 + 1;
  ParallelFor(executor, lookup.batch_size(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; sample += block) {
      PoolBlock(lookup, sample, std::min(sample + block, end), out, &fault);
    }
  });
  fault.Check(lookup);
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup(const rh_lookup* lookup, const rh_feature_rows* out, rh_bad_ids*, const rh_executor* executor) {
  return rankhouse::Guard([&] { rankhouse::PooledLookup(lookup, out, executor); });
}
