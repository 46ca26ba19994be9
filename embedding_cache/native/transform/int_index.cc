#include "transform/int_index.h"

#include <algorithm>

namespace rankhouse::transform {
namespace {

constexpr int64_t kSearches = 16;  // As many go on at once, so that they wait for memory together.

}  // namespace

void IntIndex::Find(const int64_t* values, int64_t n, int64_t* ids) const {
  if (size() == 0) {
    std::fill_n(ids, n, kUntold);
    return;
  }
  for (int64_t begin = 0; begin < n; begin += kSearches) {
    const int64_t count = std::min(kSearches, n - begin);
    int64_t places[kSearches] = {};
    // The place looked for is in [place, place + length]; all searches halve the same length, without a branch.
    for (int64_t length = size(); length > 0;) {
      const int64_t half = (length + 1) / 2;
      for (int64_t i = 0; i < count; ++i) {
        places[i] += values_[places[i] + half - 1] < values[begin + i] ? half : 0;
      }
      length -= half;
    }
    for (int64_t i = 0; i < count; ++i) {
      const bool found = places[i] < size() && values_[places[i]] == values[begin + i];
      ids[begin + i] = found ? ids_[places[i]] : kUntold;
    }
  }
}

}  // namespace rankhouse::transform
