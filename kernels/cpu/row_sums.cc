#include "cpu/row_sums.h"

#include <algorithm>
#include <cstring>

#include "cpu/bag_scale.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

// The places of so many ids are found at once, and their sums prefetched.
constexpr int64_t kBlockIds = 128;
// How far ahead words of touched rows are prefetched, in ids, and rows of the gradient.
constexpr int64_t kWordsAhead = 32;
constexpr int64_t kRowsAhead = 32;
// Of an id that gives a row of zeros.
constexpr uint32_t kNoPlace = ~uint32_t{0};

// Vectors as wide as rows allow; the compiler makes several narrower ones where there are none so wide.
template <int64_t kDim>
struct LanesOf {
  static constexpr int64_t kCount = kDim % 16 == 0 ? 16 : 8;
  typedef float Vector __attribute__((vector_size(kCount * sizeof(float)), aligned(4), may_alias));
};

// A sum that has all contributions of its chunk.
__attribute__((noinline)) void PutAside(RowSums* sums, uint32_t place) {
  float* const sum = sums->rows + place * sums->dim;
  const int64_t number = sums->num_chunks++;
  std::memcpy(sums->chunks + number * sums->dim, sum, sums->dim * sizeof(float));
  sums->chunk_places[number] = static_cast<uint64_t>(place) << 32 | static_cast<uint64_t>(number);
  std::fill_n(sum, sums->dim, -0.0f);
}

// The contributions of one feature. kDim: the width of its rows, 0 for any. Members are copies: nothing that is written
// can overlap them, as far as the compiler knows.
template <typename Id, int64_t kDim>
class FeatureAdder {
 public:
  RH_INLINE FeatureAdder(const Lookup& lookup, const Feature& feature, const rh_feature_rows& grad,
                         const TouchedRows& touched, RowSums* sums)
      : lookup_(lookup),
        feature_(feature),
        touched_(touched),
        sums_(sums),
        rows_(sums->rows),
        counts_(sums->counts),
        ids_(lookup.ids<Id>()),
        grad_(grad.data),
        stride_(grad.stride),
        dim_(kDim > 0 ? kDim : sums->dim),
        weights_(feature.combiner == RH_NONE ? nullptr : lookup.weights()) {}

  RH_INLINE void Add(int64_t begin, int64_t end) {
    const bool fixed = lookup_.raw().offsets == nullptr;
    const bool separate = feature_.combiner == RH_NONE;
    if (separate && (!fixed || stride_ == feature_.hotness * dim_)) {
      AddSingleIds(begin, end, fixed ? dim_ : stride_);
    } else if (fixed && feature_.hotness == 1 && weights_ == nullptr) {
      AddSingleIds(begin, end, stride_);
    } else {
      AddBags(begin, end, separate ? dim_ : 0);
    }
  }

 private:
  // Each id has a row of the gradient to itself; they lie `stride` apart.
  RH_INLINE void AddSingleIds(int64_t first_sample, int64_t end_sample, int64_t stride) {
    const int64_t first = lookup_.bag(feature_, first_sample).begin;
    const int64_t last = lookup_.bag(feature_, end_sample - 1).end;
    const int64_t last_prefetched = feature_.last_id - kRowsAhead;
    const float* row = grad_ + (first - feature_.first_id) * stride;
    uint32_t places[kBlockIds];
    for (int64_t begin = first; begin < last; begin += kBlockIds) {
      const int64_t end = std::min(begin + kBlockIds, last);
      FindPlaces(begin, end, places);
      for (int64_t n = begin; n < end; ++n, row += stride) {
        if (n < last_prefetched) Prefetch(row + kRowsAhead * stride);
        AddRow(places[n - begin], 1.0f, row);
      }
    }
  }

  // The k-th id of a sample has the row at k * step floats from the first one's.
  RH_INLINE void AddBags(int64_t sample, int64_t end_sample, int64_t step) {
    const bool one_scale = feature_.combiner == RH_SUM || feature_.combiner == RH_NONE;
    const int64_t last = lookup_.bag(feature_, end_sample - 1).end;
    uint32_t places[kBlockIds];
    float scale = 1.0f;
    for (int64_t n = lookup_.bag(feature_, sample).begin; n < last;) {
      const int64_t begin = n;
      const int64_t end = std::min(begin + kBlockIds, last);
      FindPlaces(begin, end, places);
      while (n < end) {
        const Bag bag = lookup_.bag(feature_, sample);
        // Once for each bag, also for one that goes on in the next block: it reads all of the bag's weights.
        if (!one_scale && n == bag.begin) scale = BagScale(lookup_, feature_, bag);
        const float* row = grad_ + sample * stride_;
        if (sample + kRowsAhead < lookup_.batch_size()) Prefetch(row + kRowsAhead * stride_);
        for (const int64_t stop = std::min(bag.end, end); n < stop; ++n) {
          const float factor = weights_ == nullptr ? scale : weights_[n] * scale;
          AddRow(places[n - begin], factor, row + (n - bag.begin) * step);
        }
        if (n == bag.end) ++sample;
      }
    }
  }

  // Finds the places of the ids at the positions [begin, end), and starts loading their sums.
  RH_INLINE void FindPlaces(int64_t begin, int64_t end, uint32_t* places) const {
    const int64_t last_prefetched = feature_.last_id - kWordsAhead;
    for (int64_t n = begin; n < end; ++n) {
      if (n < last_prefetched) touched_.Prefetch(ids_[n + kWordsAhead]);
      int64_t row = ids_[n];
      if (__builtin_expect(!feature_.Has(row), 0)) row = feature_.Row(row);
      if (__builtin_expect(row < 0, 0)) {
        places[n - begin] = kNoPlace;
        continue;
      }
      const auto place = static_cast<uint32_t>(touched_.PlaceOf(row));
      places[n - begin] = place;
      __builtin_prefetch(rows_ + place * dim_, 1);
    }
  }

  RH_INLINE void AddRow(uint32_t place, float scale, const float* row) const {
    if (__builtin_expect(place == kNoPlace, 0)) return;
    float* __restrict const sum = rows_ + place * dim_;
    if constexpr (kDim > 0) {
      using Vector = typename LanesOf<kDim>::Vector;
      for (int64_t d = 0; d < kDim; d += LanesOf<kDim>::kCount) {
        *reinterpret_cast<Vector*>(sum + d) += scale * *reinterpret_cast<const Vector*>(row + d);
      }
    } else {
      for (int64_t d = 0; d < dim_; ++d) sum[d] += scale * row[d];
    }
    if (__builtin_expect(++counts_[place] == 0, 0)) PutAside(sums_, place);
  }

  RH_INLINE void Prefetch(const float* row) const {
    for (int64_t d = 0; d < dim_; d += 16) __builtin_prefetch(row + d);
  }

  const Lookup& lookup_;
  const Feature& feature_;
  const TouchedRows touched_;
  RowSums* const sums_;
  float* const rows_;
  uint8_t* const counts_;
  const Id* const ids_;
  const float* const grad_;
  const int64_t stride_;
  const int64_t dim_;
  const float* const weights_;
};

template <typename Id>
RH_INLINE void AddSamplesOf(const Lookup& lookup, const Feature& feature, const rh_feature_rows& grad,
                            const TouchedRows& touched, int64_t begin, int64_t end, RowSums* sums) {
  switch (sums->dim) {
    case 8:
      return FeatureAdder<Id, 8>(lookup, feature, grad, touched, sums).Add(begin, end);
    case 16:
      return FeatureAdder<Id, 16>(lookup, feature, grad, touched, sums).Add(begin, end);
    default:
      return FeatureAdder<Id, 0>(lookup, feature, grad, touched, sums).Add(begin, end);
  }
}

}  // namespace

void ClearSums(int64_t num_rows, RowSums* sums) {
  std::fill_n(sums->rows, num_rows * sums->dim, -0.0f);
  std::fill_n(sums->counts, num_rows, uint8_t{0});
  sums->num_chunks = 0;
}

RH_SIMD void AddSamples(const Lookup& lookup, const Feature& feature, const rh_feature_rows& grad,
                        const TouchedRows& touched, int64_t begin, int64_t end, RowSums* sums) {
  return lookup.raw().id_type == RH_INT32 ? AddSamplesOf<int32_t>(lookup, feature, grad, touched, begin, end, sums)
                                          : AddSamplesOf<int64_t>(lookup, feature, grad, touched, begin, end, sums);
}

void AddChunks(RowSums* sums) {
  // By place, and those of one place in the order in which they were put aside.
  std::sort(sums->chunk_places, sums->chunk_places + sums->num_chunks);
  const int64_t dim = sums->dim;
  for (int64_t k = 0; k < sums->num_chunks;) {
    const uint64_t place = sums->chunk_places[k] >> 32;
    const auto chunk_of = [&](int64_t n) { return sums->chunks + (sums->chunk_places[n] & 0xffffffff) * dim; };
    float* const total = chunk_of(k);
    for (++k; k < sums->num_chunks && sums->chunk_places[k] >> 32 == place; ++k) {
      for (int64_t d = 0; d < dim; ++d) total[d] += chunk_of(k)[d];
    }
    float* const last = sums->rows + static_cast<int64_t>(place) * dim;
    for (int64_t d = 0; d < dim; ++d) last[d] = total[d] + last[d];
  }
}

}  // namespace rankhouse
