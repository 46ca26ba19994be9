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

// What an id that gives a row of zeros resolves to, and what one that makes the call fail does.
constexpr int64_t kZeroRow = -1;
constexpr int64_t kFault = -2;

// One feature and its table.
struct Feature {
  const char* rows;
  int64_t num_rows;
  int64_t dim;
  int64_t stride;  // bytes from one row to the next
  int64_t oov_row;
  int64_t first_id;  // its ids lie at the positions [first_id, last_id)
  int64_t last_id;
  int64_t hotness;  // without offsets: ids per bag
  int32_t table;
  int32_t combiner;      // an rh_combiner
  int32_t type;          // an rh_row_type
  int32_t out_of_range;  // an rh_out_of_range

  RH_HOST_DEVICE bool Has(int64_t id) const { return static_cast<uint64_t>(id) < static_cast<uint64_t>(num_rows); }

  // The row of an id: a row of the table, kZeroRow or kFault.
  RH_HOST_DEVICE int64_t Row(int64_t id) const {
    if (Has(id)) return id;
    if (out_of_range == RH_ZERO) return kZeroRow;
    if (out_of_range == RH_ERROR || num_rows == 0) return kFault;
    if (out_of_range == RH_OOV_ROW) return oov_row;
    return id < 0 ? 0 : num_rows - 1;
  }
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

  // Checks that tables whose rows will be read have them. Throws Error.
  void CheckTableRows() const;

  // Checks where the features' rows go or come from: pointers and strides. `name` is the argument's. Throws Error.
  void CheckFeatureRows(const rh_feature_rows* rows, const char* name) const;

  // The id at a position, whatever their type.
  int64_t id(int64_t n) const {
    return raw_.id_type == RH_INT32 ? static_cast<const int32_t*>(raw_.ids)[n]
                                    : static_cast<const int64_t*>(raw_.ids)[n];
  }
  template <typename Id>
  const Id* ids() const {
    return static_cast<const Id*>(raw_.ids);
  }
  const rh_lookup& raw() const { return raw_; }
  const float* weights() const { return raw_.weights; }
  int64_t num_ids() const { return raw_.num_ids; }
  int64_t batch_size() const { return raw_.batch_size; }
  int32_t num_tables() const { return raw_.num_tables; }
  const rh_table& table(int32_t t) const { return raw_.tables[t]; }

  // Where the bags of a feature begin [B + 1], or nullptr: all have its hotness.
  const int64_t* offsets(const Feature& feature) const {
    return raw_.offsets == nullptr ? nullptr : raw_.offsets + (&feature - features_.data()) * raw_.batch_size;
  }

  Bag bag(const Feature& feature, int64_t sample) const {
    if (raw_.offsets == nullptr) {
      const int64_t begin = feature.first_id + sample * feature.hotness;
      return {begin, begin + feature.hotness};
    }
    const int64_t* offset = offsets(feature) + sample;
    return {offset[0], offset[1]};
  }

  // Which of the samples [begin, end) holds a position of the feature's ids. Their offsets must not fall.
  // Memory::kHost only.
  int64_t SampleOf(const Feature& feature, int64_t position, int64_t begin, int64_t end) const;

  // Number of ids that fall into each table [T]. Memory::kHost only.
  std::vector<int64_t> IdsPerTable() const;

 private:
  void CheckTables() const;
  void AddFeature(int32_t f);
  void PlaceIds(Memory memory);
  // Goes on without offsets where all bags of each feature have one number of ids, at least 1: the operations are
  // faster then, and give the same bits. Rows without pooling lie elsewhere with offsets, so those stay.
  void DropEvenOffsets();

  rh_lookup raw_;
  std::vector<Feature> features_;
};

// Throws the Error of a bag that is wrong: its offsets, or an id in it. `ids` are the bag's, of the lookup's type, and
// are read only where the offsets are good.
[[noreturn]] void ThrowFault(const Lookup& lookup, int64_t feature, int64_t sample, Bag bag, const void* ids);

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
