// A random batch and its tables.
#ifndef RANKHOUSE_TESTS_KERNELS_FUZZ_LOOKUP_CASE_H_
#define RANKHOUSE_TESTS_KERNELS_FUZZ_LOOKUP_CASE_H_

#include "support.h"

namespace fuzz {

// What every array of a rh_lookup points to. `trainable` ones have packed float32 tables.
struct LookupCase {
  LookupCase(Random* random, bool trainable);

  int64_t batch_size;
  std::vector<Guarded<char>> rows;         // of each table, as the lookup reads them
  std::vector<Guarded<float>> float_rows;  // the same, converted back
  std::vector<rh_table> tables;
  std::vector<int32_t> feature_tables;
  std::vector<int32_t> combiners;
  std::vector<int32_t> hotness;
  Guarded<int64_t> offsets;
  Guarded<int64_t> ids;
  Guarded<int32_t> narrow_ids;
  Guarded<float> weights;
  rh_lookup lookup = {};

  int64_t num_features() const { return static_cast<int64_t>(feature_tables.size()); }
  bool has_offsets() const { return lookup.offsets != nullptr; }
  // The ids of bag (f, b) are those at [first, last).
  int64_t FirstId(int64_t f, int64_t b) const;
  int64_t LastId(int64_t f, int64_t b) const;
  // The row of a table that an id stands for, or -1 where it is zeros, or -2 where it makes the call fail.
  int64_t RowOf(const rh_table& table, int64_t id) const;
  // Ids out of range in each table, and whether one makes the call fail.
  std::vector<int64_t> BadIds() const;
  bool HasFault() const;
  float WeightOf(int64_t n) const { return lookup.weights == nullptr ? 1.0f : weights[n]; }
  // What the sum of a bag is divided by; 0 gives zeros.
  double DivisorOf(int64_t f, int64_t b) const;

  // Rows that the lookup of feature f writes, and floats in each.
  int64_t NumOutRows(int64_t f) const;
  int64_t OutWidth(int64_t f) const;

 private:
  void MakeTables(Random* random, bool trainable);
  void MakeBags(Random* random);
  void MakeIds(Random* random);
};

// Where the rows of each feature go or come from.
struct FeatureArrays {
  FeatureArrays(Random* random, const LookupCase& batch);
  std::vector<Guarded<float>> data;
  std::vector<rh_feature_rows> rows;
};

}  // namespace fuzz

#endif  // RANKHOUSE_TESTS_KERNELS_FUZZ_LOOKUP_CASE_H_
