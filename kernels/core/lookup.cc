#include "core/lookup.h"

#include <algorithm>

#include "core/status.h"

namespace rankhouse {

Lookup::Lookup(const rh_lookup* lookup, Memory memory) {
  Require(lookup != nullptr, "lookup is NULL");
  raw_ = *lookup;
  Require(raw_.batch_size >= 0 && raw_.batch_size <= std::numeric_limits<int32_t>::max(), "batch_size is ",
          raw_.batch_size, ": expected 0 to 2^31 - 1");
  Require(raw_.num_ids >= 0 && raw_.num_tables >= 0 && raw_.num_features >= 0, "negative size: num_ids ", raw_.num_ids,
          ", num_tables ", raw_.num_tables, ", num_features ", raw_.num_features);
  Require(raw_.num_ids == 0 || raw_.ids != nullptr, "ids is NULL, but num_ids is ", raw_.num_ids);
  Require(raw_.id_type == RH_INT64 || raw_.id_type == RH_INT32, "id_type is ", raw_.id_type,
          ": expected 0 (int64) or 1 (int32)");
  Require(raw_.weighting == RH_WEIGHTING_TENSORFLOW || raw_.weighting == RH_WEIGHTING_FBGEMM, "weighting is ",
          raw_.weighting, ": expected 0 (TensorFlow's) or 1 (FBGEMM's)");
  Require(raw_.num_features == 0 || (raw_.feature_tables != nullptr && raw_.combiners != nullptr),
          "feature_tables or combiners is NULL");
  Require(raw_.num_features == 0 || raw_.offsets != nullptr || raw_.hotness != nullptr,
          "offsets and hotness are both NULL: one of them must say where bags begin");
  CheckTables();
  features_.reserve(raw_.num_features);
  for (int32_t f = 0; f < raw_.num_features; ++f) AddFeature(f);
  PlaceIds(memory);
  if (memory == Memory::kHost && raw_.offsets != nullptr) DropEvenOffsets();
}

void Lookup::CheckTables() const {
  Require(raw_.num_tables == 0 || raw_.tables != nullptr, "tables is NULL");
  for (int32_t t = 0; t < raw_.num_tables; ++t) {
    const rh_table& table = raw_.tables[t];
    // A bound on the width keeps the sum over 2^31 features from overflowing.
    Require(table.num_rows >= 0 && table.dim >= 1 && table.dim <= std::numeric_limits<int32_t>::max(), "table ", t,
            " has shape [", table.num_rows, ", ", table.dim, "]: expected rows >= 0 and a width of 1 to 2^31 - 1");
    const int64_t row_bytes = rh_row_bytes(table.type, table.dim);
    Require(row_bytes > 0, "table ", t, " has row type ", table.type,
            ": expected 0 (float32), 1 (float16), 2 (bfloat16) or 3 (row-wise int8)");
    Require(table.stride == 0 || table.stride >= row_bytes, "table ", t, " has a stride of ", table.stride,
            " bytes: expected 0 (packed) or at least the ", row_bytes, " bytes of a row");
    Require(RH_ERROR <= table.out_of_range && table.out_of_range <= RH_OOV_ROW, "table ", t, " has out_of_range ",
            table.out_of_range, ": expected 0 (error), 1 (zero), 2 (clip) or 3 (out-of-vocabulary row)");
    Require(table.out_of_range != RH_OOV_ROW || table.num_rows == 0 ||
                (0 <= table.oov_row && table.oov_row < table.num_rows),
            "table ", t, " has oov_row ", table.oov_row, ": expected one of its ", table.num_rows, " rows");
  }
}

void Lookup::AddFeature(int32_t f) {
  const int32_t t = raw_.feature_tables[f];
  Require(t >= 0 && t < raw_.num_tables, "feature ", f, " names table ", t, ", but there are ", raw_.num_tables,
          " tables");
  const int32_t combiner = raw_.combiners[f];
  Require(RH_SUM <= combiner && combiner <= RH_NONE, "feature ", f, " has combiner ", combiner,
          ": expected 0 (sum), 1 (mean), 2 (sqrtn) or 3 (none)");
  const int64_t hotness = raw_.offsets == nullptr ? raw_.hotness[f] : 0;
  Require(hotness >= 0, "feature ", f, " has hotness ", hotness, ": expected >= 0");
  const rh_table& table = raw_.tables[t];
  const int64_t stride = table.stride == 0 ? rh_row_bytes(table.type, table.dim) : table.stride;
  features_.push_back({static_cast<const char*>(table.rows), table.num_rows, table.dim, stride, table.oov_row, 0,
                       raw_.num_ids, hotness, t, combiner, table.type, table.out_of_range});
}

void Lookup::PlaceIds(Memory memory) {
  const int64_t num_bags = raw_.num_features * raw_.batch_size;
  Require(num_bags > 0 || raw_.num_ids == 0, "there are ", raw_.num_ids, " ids, but no bags: expected features and a ",
          "batch size of at least 1");
  if (raw_.offsets == nullptr) {
    int64_t position = 0;
    for (Feature& feature : features_) {
      feature.first_id = position;
      position += feature.hotness * raw_.batch_size;
      feature.last_id = position;
      // Checked at once, which also keeps the sum from overflowing.
      Require(position <= raw_.num_ids, "there are ", raw_.num_ids, " ids: hotness and a batch size of ",
              raw_.batch_size, " need more");
    }
    Require(position == raw_.num_ids, "there are ", raw_.num_ids, " ids: hotness and a batch size of ", raw_.batch_size,
            " need ", position);
  } else if (memory == Memory::kHost) {
    Require(raw_.offsets[0] == 0 && raw_.offsets[num_bags] == raw_.num_ids, "offsets run from ", raw_.offsets[0],
            " to ", raw_.offsets[num_bags], ": expected 0 to the number of ids, ", raw_.num_ids);
    for (int32_t f = 0; f < raw_.num_features; ++f) {
      features_[f].first_id = raw_.offsets[f * raw_.batch_size];
      features_[f].last_id = raw_.offsets[(f + 1) * raw_.batch_size];
      Require(features_[f].first_id <= features_[f].last_id && features_[f].last_id <= raw_.num_ids,
              "offsets of feature ", f, " run from ", features_[f].first_id, " to ", features_[f].last_id,
              ": expected them never to fall and to end at ", raw_.num_ids, " or before");
    }
  }
}

void Lookup::DropEvenOffsets() {
  std::vector<int64_t> hotness;
  hotness.reserve(features_.size());
  for (const Feature& feature : features_) {
    const int64_t num_ids = feature.last_id - feature.first_id;
    if (feature.combiner == RH_NONE || raw_.batch_size == 0 || num_ids == 0 || num_ids % raw_.batch_size != 0) return;
    hotness.push_back(num_ids / raw_.batch_size);
    // Unsigned: offsets are not checked yet, and a difference may overflow. Blocks: uneven bags are seen soon, and even
    // ones compared several at a time.
    const int64_t* bags = offsets(feature);
    const auto expected = static_cast<uint64_t>(hotness.back());
    constexpr int64_t kBlock = 256;
    for (int64_t begin = 0; begin < raw_.batch_size; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, raw_.batch_size);
      uint64_t differences = 0;
      for (int64_t bag = begin; bag < end; ++bag) {
        differences |= (static_cast<uint64_t>(bags[bag + 1]) - static_cast<uint64_t>(bags[bag])) ^ expected;
      }
      if (differences != 0) return;
    }
  }
  raw_.offsets = nullptr;
  for (size_t f = 0; f < features_.size(); ++f) features_[f].hotness = hotness[f];
}

void Lookup::CheckTableRows() const {
  for (const Feature& feature : features_) {
    Require(feature.rows != nullptr || feature.num_rows == 0 || feature.first_id == feature.last_id, "table ",
            feature.table, " has ", feature.num_rows, " rows, but its rows are NULL");
  }
}

void Lookup::CheckFeatureRows(const rh_feature_rows* rows, const char* name) const {
  Require(features_.empty() || rows != nullptr, name, " is NULL");
  for (size_t f = 0; f < features_.size(); ++f) {
    const Feature& feature = features_[f];
    const bool separate = feature.combiner == RH_NONE;
    const int64_t width = separate && raw_.offsets == nullptr ? feature.hotness * feature.dim : feature.dim;
    const int64_t num_rows = separate && raw_.offsets != nullptr ? feature.last_id - feature.first_id : raw_.batch_size;
    if (num_rows == 0 || width == 0) continue;
    Require(rows[f].data != nullptr, name, " of feature ", f, " is NULL");
    Require(rows[f].stride >= width, name, " of feature ", f, " has a stride of ", rows[f].stride,
            ": expected at least its width, ", width);
  }
}

int64_t Lookup::SampleOf(const Feature& feature, int64_t position, int64_t begin, int64_t end) const {
  const int64_t* bags = offsets(feature);
  if (bags == nullptr) return (position - feature.first_id) / feature.hotness;
  return std::upper_bound(bags + begin, bags + end, position) - bags - 1;
}

std::vector<int64_t> Lookup::IdsPerTable() const {
  std::vector<int64_t> count(raw_.num_tables, 0);
  for (const Feature& feature : features_) count[feature.table] += feature.last_id - feature.first_id;
  return count;
}

void ThrowFault(const Lookup& lookup, int64_t f, int64_t sample, Bag bag, const void* ids) {
  const Feature& feature = lookup.features()[f];
  Require(bag.Within(feature), "offsets of feature ", f, ", sample ", sample, " run from ", bag.begin, " to ", bag.end,
          ": expected them never to fall and to stay within ", feature.first_id, " to ", feature.last_id);
  for (int64_t position = 0; position < bag.end - bag.begin; ++position) {
    const int64_t id = lookup.raw().id_type == RH_INT32 ? static_cast<const int32_t*>(ids)[position]
                                                        : static_cast<const int64_t*>(ids)[position];
    if (feature.Row(id) != kFault) continue;
    throw Error(RH_OUT_OF_RANGE,
                StrCat("id ", id, " of feature ", f, " (sample ", sample, ", position ", position,
                       " in its bag) is out of range: table ", feature.table, " has ", feature.num_rows, " rows"));
  }
  throw Error(RH_INTERNAL, "the ids changed while they were read");
}

void FirstFault::Report(const Lookup& lookup, const Feature& feature, int64_t sample) noexcept {
  const int64_t bag = (&feature - lookup.features().data()) * lookup.batch_size() + sample;
  int64_t seen = bag_.load(std::memory_order_relaxed);
  while (bag < seen && !bag_.compare_exchange_weak(seen, bag, std::memory_order_relaxed)) {
  }
}

void FirstFault::Check(const Lookup& lookup) const {
  const int64_t fault = bag_.load(std::memory_order_relaxed);
  if (fault == kNone) return;
  const int64_t feature = fault / lookup.batch_size();
  const int64_t sample = fault % lookup.batch_size();
  const Bag bag = lookup.bag(lookup.features()[feature], sample);
  const int64_t id_bytes = lookup.raw().id_type == RH_INT32 ? sizeof(int32_t) : sizeof(int64_t);
  ThrowFault(lookup, feature, sample, bag, static_cast<const char*>(lookup.raw().ids) + bag.begin * id_bytes);
}

}  // namespace rankhouse
