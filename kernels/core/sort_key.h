// One id of a batch and its bag in one number, which sorts by id, then feature, then sample: the order of positions.
#ifndef RANKHOUSE_CORE_SORT_KEY_H_
#define RANKHOUSE_CORE_SORT_KEY_H_

#include <cstdint>

#include "core/host_device.h"

namespace rankhouse {

// Bits that hold every number from 0 to count - 1.
inline int BitWidth(int64_t count) { return count <= 1 ? 0 : 64 - __builtin_clzll(static_cast<uint64_t>(count - 1)); }

// id | feature | sample, from the top.
struct KeyLayout {
  int feature_bits;
  int sample_bits;

  RH_HOST_DEVICE int id_shift() const { return feature_bits + sample_bits; }

  RH_HOST_DEVICE uint64_t Key(int64_t id, int64_t feature, int64_t sample) const {
    return (static_cast<uint64_t>(id) << feature_bits | static_cast<uint64_t>(feature)) << sample_bits |
           static_cast<uint64_t>(sample);
  }
  RH_HOST_DEVICE int64_t Id(uint64_t key) const { return static_cast<int64_t>(key >> id_shift()); }
  RH_HOST_DEVICE int64_t Feature(uint64_t key) const { return Low(key >> sample_bits, feature_bits); }
  RH_HOST_DEVICE int64_t Sample(uint64_t key) const { return Low(key, sample_bits); }

 private:
  RH_HOST_DEVICE static int64_t Low(uint64_t bits, int count) {
    return static_cast<int64_t>(bits & ((uint64_t{1} << count) - 1));
  }
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_SORT_KEY_H_
