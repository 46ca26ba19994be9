#include "lookup_case.h"

#include <algorithm>
#include <cmath>

namespace fuzz {

LookupCase::LookupCase(Random* random, bool trainable)
    : batch_size(random->Chance(5) ? random->OneOf<int64_t>({0, 300}) : random->Between(1, 12)) {
  MakeTables(random, trainable);
  const int64_t num_features = tables.empty() ? 0 : random->Between(0, 5);
  for (int64_t f = 0; f < num_features; ++f) {
    feature_tables.push_back(static_cast<int32_t>(random->Between(0, static_cast<int64_t>(tables.size()) - 1)));
    combiners.push_back(static_cast<int32_t>(random->Between(RH_SUM, RH_NONE)));
  }
  MakeBags(random);
  MakeIds(random);
  lookup.tables = tables.data();
  lookup.feature_tables = feature_tables.data();
  lookup.combiners = combiners.data();
  lookup.num_ids = ids.size();
  lookup.batch_size = batch_size;
  lookup.num_tables = static_cast<int32_t>(tables.size());
  lookup.num_features = static_cast<int32_t>(num_features);
  lookup.weighting = random->OneOf<int32_t>({RH_WEIGHTING_TENSORFLOW, RH_WEIGHTING_FBGEMM});
}

void LookupCase::MakeTables(Random* random, bool trainable) {
  for (int64_t t = random->Between(0, 4); t-- > 0;) {
    rh_table table = {};
    table.num_rows = random->Chance(10) ? 0 : random->Between(1, 40);
    table.dim = random->Chance(80) ? random->Between(1, 40) : random->OneOf<int64_t>({64, 128, 129, 240, 300, 1100});
    table.type = trainable ? RH_FLOAT32 : static_cast<int32_t>(random->Between(RH_FLOAT32, RH_INT8_ROWWISE));
    table.out_of_range = static_cast<int32_t>(random->Between(RH_ERROR, RH_OOV_ROW));
    table.oov_row = random->Between(0, std::max<int64_t>(table.num_rows - 1, 0));
    const int64_t element = table.type == RH_FLOAT32 ? 4 : table.type == RH_INT8_ROWWISE ? 1 : 2;
    const int64_t row_bytes = rh_row_bytes(table.type, table.dim);
    const int64_t stride = trainable ? row_bytes : row_bytes + element * random->Between(0, 5);
    table.stride = stride == row_bytes && random->Chance(50) ? 0 : stride;
    Guarded<float> values(table.num_rows * table.dim);
    for (float& value : values) value = random->Number();
    const int64_t bytes = table.num_rows == 0 ? 0 : (table.num_rows - 1) * stride + row_bytes;
    rows.emplace_back(bytes, element * random->Between(0, 3));
    CHECK(rh_quantize_rows(values.OrNull(), table.num_rows, table.dim, table.type, stride, rows.back().OrNull(),
                           nullptr) == RH_OK);
    CHECK(rh_dequantize_rows(rows.back().OrNull(), table.num_rows, table.dim, table.type, stride, values.OrNull(),
                             nullptr) == RH_OK);
    float_rows.push_back(std::move(values));
    table.rows = rows.back().OrNull();
    tables.push_back(table);
  }
}

void LookupCase::MakeBags(Random* random) {
  const int64_t num_bags = num_features() * batch_size;
  int64_t num_ids = 0;
  if (random->Chance(60)) {
    offsets = Guarded<int64_t>(random, num_bags + 1);
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      num_ids += random->Chance(30) ? 0 : random->Between(0, 7);
      offsets[bag + 1] = num_ids;
    }
    lookup.offsets = offsets.data();
  } else {
    for (int64_t f = 0; f < num_features(); ++f) {
      hotness.push_back(static_cast<int32_t>(random->Between(0, 4)));
      num_ids += hotness.back() * batch_size;
    }
    lookup.hotness = hotness.data();
  }
  ids = Guarded<int64_t>(random, num_ids);
}

void LookupCase::MakeIds(Random* random) {
  const int bad_percent = random->OneOf({0, 0, 1, 20});
  const bool narrow = random->Chance(40);
  narrow_ids = Guarded<int32_t>(random, narrow ? ids.size() : 0);
  weights = Guarded<float>(random, random->Chance(50) ? ids.size() : 0);
  for (int64_t f = 0; f < num_features(); ++f) {
    const int64_t num_rows = tables[feature_tables[f]].num_rows;
    const int64_t end = batch_size == 0 ? 0 : LastId(f, batch_size - 1);
    for (int64_t n = batch_size == 0 ? 0 : FirstId(f, 0); n < end; ++n) {
      ids[n] = num_rows == 0 ? 0 : random->Between(0, num_rows - 1);
      if (!random->Chance(bad_percent)) continue;
      ids[n] = narrow ? random->OneOf<int64_t>({-1, num_rows, INT32_MIN, INT32_MAX})
                      : random->OneOf<int64_t>({-1, num_rows, INT64_MIN, INT64_MAX, int64_t{1} << 32});
    }
  }
  for (int64_t n = 0; n < narrow_ids.size(); ++n) narrow_ids[n] = static_cast<int32_t>(ids[n]);
  for (float& weight : weights) weight = random->Chance(10) ? 0.0f : random->Positive();
  lookup.id_type = narrow ? RH_INT32 : RH_INT64;
  lookup.ids = narrow ? static_cast<const void*>(narrow_ids.OrNull()) : ids.OrNull();
  lookup.weights = weights.OrNull();
}

int64_t LookupCase::FirstId(int64_t f, int64_t b) const {
  if (has_offsets()) return offsets[f * batch_size + b];
  int64_t first = 0;
  for (int64_t before = 0; before < f; ++before) first += hotness[before] * batch_size;
  return first + b * hotness[f];
}

int64_t LookupCase::LastId(int64_t f, int64_t b) const {
  return has_offsets() ? offsets[f * batch_size + b + 1] : FirstId(f, b) + hotness[f];
}

int64_t LookupCase::RowOf(const rh_table& table, int64_t id) const {
  if (0 <= id && id < table.num_rows) return id;
  if (table.out_of_range == RH_ZERO) return -1;
  if (table.out_of_range == RH_ERROR || table.num_rows == 0) return -2;
  if (table.out_of_range == RH_OOV_ROW) return table.oov_row;
  return id < 0 ? 0 : table.num_rows - 1;
}

std::vector<int64_t> LookupCase::BadIds() const {
  std::vector<int64_t> bad(tables.size());
  for (int64_t f = 0; f < num_features() && batch_size > 0; ++f) {
    const rh_table& table = tables[feature_tables[f]];
    for (int64_t n = FirstId(f, 0); n < LastId(f, batch_size - 1); ++n) {
      bad[feature_tables[f]] += ids[n] < 0 || ids[n] >= table.num_rows;
    }
  }
  return bad;
}

bool LookupCase::HasFault() const {
  const std::vector<int64_t> bad = BadIds();
  for (size_t t = 0; t < tables.size(); ++t) {
    const bool fails =
        tables[t].out_of_range == RH_ERROR || (tables[t].num_rows == 0 && tables[t].out_of_range != RH_ZERO);
    if (bad[t] > 0 && fails) return true;
  }
  return false;
}

double LookupCase::DivisorOf(int64_t f, int64_t b) const {
  if (combiners[f] == RH_SUM || combiners[f] == RH_NONE) return 1;
  double sum = 0;
  for (int64_t n = FirstId(f, b); n < LastId(f, b); ++n) {
    const double weight = lookup.weighting == RH_WEIGHTING_FBGEMM ? 1 : WeightOf(n);
    sum += combiners[f] == RH_MEAN ? weight : weight * weight;
  }
  return combiners[f] == RH_MEAN ? sum : std::sqrt(sum);
}

int64_t LookupCase::NumOutRows(int64_t f) const {
  if (combiners[f] != RH_NONE || !has_offsets()) return batch_size;
  return batch_size == 0 ? 0 : LastId(f, batch_size - 1) - FirstId(f, 0);
}

int64_t LookupCase::OutWidth(int64_t f) const {
  const int64_t dim = tables[feature_tables[f]].dim;
  return combiners[f] == RH_NONE && !has_offsets() ? dim * hotness[f] : dim;
}

FeatureArrays::FeatureArrays(Random* random, const LookupCase& batch) {
  for (int64_t f = 0; f < batch.num_features(); ++f) {
    const int64_t width = batch.OutWidth(f), stride = width + random->Between(0, 3), num_rows = batch.NumOutRows(f);
    data.emplace_back(random, num_rows == 0 ? 0 : (num_rows - 1) * stride + width);
    for (float& value : data.back()) value = random->Number();
    rows.push_back({data.back().OrNull(), stride});
  }
}

}  // namespace fuzz
