// A checked rh_lookup, as the operations of all devices see it.
#ifndef RANKHOUSE_CORE_LOOKUP_H_
#define RANKHOUSE_CORE_LOOKUP_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/host_device.h"
#include "rankhouse/kernels.h"

namespace rankhouse {

// One feature: where its rows come from and where its part of the output lies.
struct Feature {
  const float* rows;
  int64_t num_rows;
  int64_t dim;
  int64_t column;    // first column in the output
  int64_t first_id;  // its ids lie at the positions [first_id, last_id)
  int64_t last_id;
  int64_t hotness;  // without offsets: ids per bag
  int32_t table;
  bool mean;
};

// The positions [begin, end) of a bag's ids.
struct Bag {
  int64_t begin;
  int64_t end;

  // True if the feature owns these positions, so that they can be read.
  RH_HOST_DEVICE bool Within(const Feature& feature) const {
    return feature.first_id <= begin && begin <= end && end <= feature.last_id;
  }
};

class Lookup {
 public:
  enum class Memory { kHost, kDevice };

  // Checks all but the ids and the offsets inside features, which the operations check as they read them. `memory` says
  // where ids and offsets lie: those on a device cannot be read here, and first_id and last_id then span all ids.
  // Throws Error.
  explicit Lookup(const rh_lookup* lookup, Memory memory = Memory::kHost);

  const std::vector<Feature>& features() const { return features_; }
  const int64_t* ids() const { return raw_.ids; }
  int64_t num_ids() const { return raw_.num_ids; }
  int64_t batch_size() const { return raw_.batch_size; }
  int32_t num_tables() const { return raw_.num_tables; }
  const rh_table& table(int32_t t) const { return raw_.tables[t]; }
  int64_t width() const { return width_; }

  Bag bag(const Feature& feature, int64_t sample) const {
    if (raw_.offsets == nullptr) {
      const int64_t begin = feature.first_id + sample * feature.hotness;
      return {begin, begin + feature.hotness};
    }
    const int64_t* offset = raw_.offsets + (&feature - features_.data()) * raw_.batch_size + sample;
    return {offset[0], offset[1]};
  }

  // Number of ids that fall into each table [T]. Memory::kHost only.
  std::vector<int64_t> IdsPerTable() const;

 private:
  void CheckTables() const;
  void AddFeature(int32_t f);
  void PlaceIds(Memory memory);

  rh_lookup raw_;
  std::vector<Feature> features_;
  int64_t width_ = 0;
};

// Throws the Error of a bag that is wrong: its offsets, or an id in it. `ids` are the bag's, and are read only where
// the offsets are good.
[[noreturn]] void ThrowFault(const Lookup& lookup, int64_t feature, int64_t sample, Bag bag, const int64_t* ids);

// Collects from several threads the first bag of a batch that is wrong: its offsets, or an id in it.
class FirstFault {
 public:
  // Any thread may call it.
  void Report(const Lookup& lookup, const Feature& feature, int64_t sample) noexcept;

  // Throws the Error of the first bag that was reported, if any. Call it when all threads are done.
  void Check(const Lookup& lookup) const;

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> bag_{kNone};
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_LOOKUP_H_
