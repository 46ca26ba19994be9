#include "engine/batch.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/status.h"

namespace rankhouse::engine {
namespace {

// Where bags begin, from their lengths. Most often all are 1.
void ReadLengths(const Version& version, const int32_t* lengths, Arena* arena, rh_lookup* lookup) {
  const int64_t num_bags = lookup->num_features * lookup->batch_size;
  if (lookup->num_ids == num_bags && std::all_of(lengths, lengths + num_bags, [](int32_t n) { return n == 1; })) {
    int32_t* hotness = arena->Take<int32_t>(lookup->num_features);
    std::fill_n(hotness, lookup->num_features, 1);
    lookup->hotness = hotness;
    return;
  }
  int64_t* offsets = arena->Take<int64_t>(num_bags + 1);
  offsets[0] = 0;
  for (int64_t bag = 0; bag < num_bags; ++bag) {
    if (lengths[bag] < 0) {
      throw Error(
          RH_INVALID_ARGUMENT,
          StrCat("the length of feature '", version.manifest().features[bag / lookup->batch_size].name, "' in sample ",
                 bag % lookup->batch_size, " is ", lengths[bag], "; expected one length of 0 or more for each bag"));
    }
    offsets[bag + 1] = offsets[bag] + lengths[bag];
  }
  Require(offsets[num_bags] == lookup->num_ids, "lengths add up to ", offsets[num_bags], ", there are ",
          lookup->num_ids, " ids; expected one length of 0 or more for each bag");
  lookup->offsets = offsets;
}

}  // namespace

void CheckIdType(const rh_engine_batch& batch) {
  Require(batch.id_type == RH_INT64 || batch.id_type == RH_INT32, "id_type is ", batch.id_type,
          ": expected 0 (int64) or 1 (int32)");
}

rh_lookup LookupOf(const Version& version, const rh_engine_batch& batch, Arena* arena) {
  rh_lookup lookup = {};
  lookup.feature_tables = version.feature_tables().data();
  lookup.combiners = batch.combiners != nullptr ? batch.combiners : version.combiners().data();
  lookup.num_features = static_cast<int32_t>(version.feature_tables().size());
  lookup.ids = batch.ids;
  lookup.weights = batch.weights;
  lookup.num_ids = batch.num_ids;
  lookup.batch_size = batch.batch_size;
  lookup.id_type = batch.id_type;
  Require(0 <= batch.batch_size && batch.batch_size <= std::numeric_limits<int32_t>::max(), "batch_size is ",
          batch.batch_size, ": expected 0 to 2^31 - 1");
  Require(batch.num_ids >= 0 && (batch.num_ids == 0 || batch.ids != nullptr), "there are ", batch.num_ids,
          " ids: expected 0 or more, and ids not to be NULL");
  CheckIdType(batch);
  const int given = (batch.offsets != nullptr) + (batch.lengths != nullptr) + (batch.hotness != nullptr);
  const bool has_bags = lookup.num_features > 0 && batch.batch_size > 0;
  Require(given == 1 || (given == 0 && !has_bags), "expected one of offsets, lengths and hotness, found ", given);
  lookup.offsets = batch.offsets;
  lookup.hotness = batch.hotness;
  if (!has_bags) {
    // There is nothing to say about bags, so that the arrays may be NULL; the kernels want one of them.
    lookup.offsets = nullptr;
    int32_t* hotness = arena->Take<int32_t>(lookup.num_features + 1);
    std::fill_n(hotness, lookup.num_features + 1, 0);
    lookup.hotness = hotness;
  } else if (batch.lengths != nullptr) {
    ReadLengths(version, batch.lengths, arena, &lookup);
  }
  return lookup;
}

}  // namespace rankhouse::engine
