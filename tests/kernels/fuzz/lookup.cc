// The pooled lookup against sums in float64, and lookups that are wrong in one field.
#include <cmath>

#include "lookup_case.h"

namespace fuzz {
namespace {

void CheckBag(const LookupCase& batch, const FeatureArrays& out, int64_t f, int64_t b) {
  const rh_table& table = batch.tables[batch.feature_tables[f]];
  const Guarded<float>& rows = batch.float_rows[batch.feature_tables[f]];
  const int64_t first = batch.FirstId(f, b), last = batch.LastId(f, b);
  const rh_feature_rows& found = out.rows[f];
  for (int64_t d = 0; d < table.dim; ++d) {
    double sum = 0, size = 0;
    for (int64_t n = first; n < last; ++n) {
      const int64_t row = batch.RowOf(table, batch.ids[n]);
      const double value = row < 0 ? 0 : rows[row * table.dim + d];
      if (batch.combiners[f] == RH_NONE) {
        const int64_t k = n - batch.FirstId(f, 0);
        const float* at = batch.has_offsets() ? found.data + k * found.stride
                                              : found.data + b * found.stride + (n - first) * table.dim;
        CHECK(at[d] == static_cast<float>(value));
      }
      sum += batch.WeightOf(n) * value;
      size += std::abs(batch.WeightOf(n) * value);
    }
    if (batch.combiners[f] == RH_NONE) continue;
    const double divisor = batch.DivisorOf(f, b);
    const double expected = divisor == 0 ? 0 : sum / divisor;
    const double bound = divisor == 0 ? 0 : 1e-5 * (size / divisor);
    CHECK(std::abs(found.data[b * found.stride + d] - expected) <= bound);
  }
}

// Makes one field wrong in a way that the call can see.
bool Spoil(Random* random, LookupCase* batch) {
  const auto bad_size = [&] { return random->OneOf<int64_t>({-1, INT64_MIN}); };
  rh_lookup& lookup = batch->lookup;
  const int64_t num_bags = batch->num_features() * batch->batch_size;
  switch (random->Between(0, 12)) {
    case 0:
      lookup.batch_size = random->OneOf<int64_t>({-1, INT64_MIN, INT64_MAX});
      return true;
    case 1:
      lookup.num_ids = bad_size();
      return true;
    case 2:
      lookup.id_type = random->OneOf<int32_t>({-1, 2, INT32_MAX});
      return true;
    case 3:
      lookup.weighting = random->OneOf<int32_t>({-1, 2});
      return true;
    case 4:
      (random->Chance(50) ? lookup.num_tables : lookup.num_features) = random->OneOf<int32_t>({-1, INT32_MIN});
      return true;
    case 5:
      lookup.offsets = nullptr;
      lookup.hotness = nullptr;
      return batch->num_features() > 0;
    default:
      break;
  }
  if (batch->num_features() == 0) return false;
  const int64_t f = random->Between(0, batch->num_features() - 1);
  rh_table& table = batch->tables[batch->feature_tables[f]];
  switch (random->Between(0, 6)) {
    case 0:
      batch->feature_tables[f] = random->OneOf<int32_t>({-1, lookup.num_tables, INT32_MIN, INT32_MAX});
      return true;
    case 1:
      batch->combiners[f] = random->OneOf<int32_t>({-1, 4, INT32_MIN});
      return true;
    case 2:
      table.dim = random->OneOf<int64_t>({0, -1, INT64_MIN, INT64_MAX});
      return true;
    case 3:
      table.type = random->OneOf<int32_t>({-1, 4, INT32_MAX});
      return true;
    case 4:
      table.stride = random->OneOf<int64_t>({-1, INT64_MIN, rh_row_bytes(table.type, table.dim) - 1});
      return true;
    case 5:
      table.out_of_range = random->OneOf<int32_t>({-1, 4});
      return true;
    default:
      if (batch->has_offsets()) {
        batch->offsets[random->Between(0, num_bags)] = random->OneOf<int64_t>({-1, INT64_MIN, INT64_MAX});
      } else {
        batch->hotness[f] = random->OneOf<int32_t>({-1, INT32_MIN, INT32_MAX});
      }
      return batch->has_offsets() || batch->batch_size > 0;
  }
}

// Samples that never fall, with those without ids between them.
void CheckOffsets(Random* random) {
  const int64_t batch_size = random->Between(1, 20), stride = random->Between(1, 3), num_ids = random->Between(0, 50);
  Guarded<int64_t> samples(random, num_ids == 0 ? 0 : (num_ids - 1) * stride + 1), offsets(random, batch_size + 1);
  std::vector<int64_t> counts(batch_size);
  int64_t sample = 0;
  for (int64_t n = 0; n < num_ids; ++n) {
    if (random->Chance(40)) sample = random->Between(sample, batch_size - 1);
    samples[n * stride] = sample;
    ++counts[sample];
  }
  CHECK(rh_offsets_from_samples(samples.OrNull(), stride, num_ids, batch_size, offsets.data()) == RH_OK);
  CHECK(offsets[0] == 0);
  for (int64_t b = 0; b < batch_size; ++b) CHECK(offsets[b + 1] - offsets[b] == counts[b]);
  if (num_ids == 0) return;
  samples[random->Between(0, num_ids - 1) * stride] = random->OneOf<int64_t>({-1, batch_size, INT64_MIN, INT64_MAX});
  const int status = rh_offsets_from_samples(samples.data(), stride, num_ids, batch_size, offsets.data());
  CHECK(status == RH_INVALID_ARGUMENT || status == RH_OUT_OF_RANGE);
}

}  // namespace

void FuzzLookup(Random* random) {
  LookupCase batch(random, /*trainable=*/false);
  FeatureArrays out(random, batch), again(random, batch);
  const RandomExecutor executor(random), other(random);
  std::vector<rh_bad_ids> bad_ids(batch.tables.size());
  const bool wants_bad_ids = random->Chance(70);
  const int status =
      rh_pooled_lookup(&batch.lookup, out.rows.data(), wants_bad_ids ? bad_ids.data() : nullptr, executor.get());
  CHECK(status == (batch.HasFault() ? RH_OUT_OF_RANGE : RH_OK));
  CHECK(rh_pooled_lookup(&batch.lookup, again.rows.data(), nullptr, other.get()) == status);
  if (status == RH_OK) {
    const std::vector<int64_t> expected = batch.BadIds();
    for (size_t t = 0; wants_bad_ids && t < bad_ids.size(); ++t) CHECK(bad_ids[t].count == expected[t]);
    for (int64_t f = 0; f < batch.num_features(); ++f) {
      for (int64_t b = 0; b < batch.batch_size; ++b) CheckBag(batch, out, f, b);
      for (int64_t r = 0; r < batch.NumOutRows(f); ++r) {
        Record(out.rows[f].data + r * out.rows[f].stride, batch.OutWidth(f) * sizeof(float));
        CHECK(batch.OutWidth(f) == 0 ||
              std::memcmp(out.rows[f].data + r * out.rows[f].stride, again.rows[f].data + r * again.rows[f].stride,
                          batch.OutWidth(f) * sizeof(float)) == 0);
      }
    }
  }
  CheckOffsets(random);
  if (Spoil(random, &batch)) {
    CHECK(rh_pooled_lookup(&batch.lookup, out.rows.data(), nullptr, executor.get()) == RH_INVALID_ARGUMENT);
    std::vector<int64_t> capacity(batch.tables.size());
    const int of_capacity = rh_gradient_capacity(&batch.lookup, capacity.data());
    CHECK(of_capacity == RH_OK || of_capacity == RH_INVALID_ARGUMENT);
  }
}

}  // namespace fuzz
