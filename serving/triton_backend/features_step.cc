#include "features_step.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "failure.h"
#include "shared_rows.h"
#include "tensors.h"

namespace rankhouse::triton {
namespace {

// Memory that a client shares with the server can hold more values than the tensor's type counts.
int32_t AsCount(int64_t number) {
  return static_cast<int32_t>(std::min<int64_t>(number, std::numeric_limits<int32_t>::max()));
}

}  // namespace

FeaturesStep::FeaturesStep(std::shared_ptr<const ServedVersion> version)
    : version_(std::move(version)), transform_(version_->OpenTransform()) {
  CheckEngine(rh_transform_get_shape(transform_.get(), &shape_));
  Require(shape_.num_features == version_->num_features(), "the version's transform has ", shape_.num_features,
          " categorical features, its manifest ", version_->num_features());
}

void FeaturesStep::Run(const std::vector<Request*>& requests, Workspace* workspace) const {
  const RawBatches raw(requests);
  for (const rh_raw_batch& batch : raw.batches) CheckColumns(batch);
  const SharedRows dense(kDense, shape_.num_floats, raw.num_rows, requests, &workspace->dense);
  const SharedRows embeddings(kEmbeddings, version_->num_columns(), raw.num_rows, requests, &workspace->embeddings);
  rh_model_input input{};
  input.dense = dense.data();
  input.ids_capacity = raw.num_rows * shape_.num_features + raw.num_values;
  input.ids = workspace->ids.OfSize(input.ids_capacity);
  input.offsets = workspace->offsets.OfSize(shape_.num_features * raw.num_rows + 1);
  const auto num_batches = static_cast<int64_t>(raw.batches.size());
  input.num_unknown = workspace->num_unknown.OfSize(num_batches);
  CheckEngine(rh_transform_apply(transform_.get(), raw.batches.data(), num_batches, &input, &kOneThread));
  rh_engine_batch batch{};
  batch.ids = input.ids;
  batch.offsets = input.offsets;
  batch.num_ids = input.num_ids;
  batch.batch_size = raw.num_rows;
  batch.id_type = RH_INT64;
  batch.started_ns = workspace->started_ns;
  const bool is_degraded = version_->Lookup(batch, embeddings.data());
  if (is_degraded && requests.size() > 1) {
    // The engine does not say whose rows did not come: alone, each request learns that of its own. The time for rows is
    // over by then, and those that came are in the engine's cache.
    throw Failure(TRITONSERVER_ERROR_UNAVAILABLE, "some of the batch's rows did not come");
  }
  dense.Split(requests, NumRawRows);
  embeddings.Split(requests, NumRawRows);
  const int64_t* num_unknown = input.num_unknown;
  ForEachAlone(requests, [&](Request* request) {
    const int64_t own = *num_unknown++;
    *request->Output<int32_t>(kDegraded, {1}) = is_degraded ? 1 : 0;
    *request->Output<int32_t>(kUnknown, {1}) = AsCount(own);
  });
}

// Without columns a tensor without a byte has any number of rows: memory for answers is only taken for batches that
// have the model's columns, and so a value or a length for each row.
void FeaturesStep::CheckColumns(const rh_raw_batch& batch) const {
  const bool fits = batch.num_float_columns == shape_.num_floats && batch.num_int_columns == shape_.num_ints &&
                    batch.num_text_columns == shape_.num_texts;
  if (!fits) CheckEngine(rh_transform_check(transform_.get(), &batch));
}

}  // namespace rankhouse::triton
