#include "features_step.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "device_rows.h"
#include "failure.h"
#include "shared_rows.h"
#include "tensors.h"

namespace rankhouse::triton {
namespace {

// Memory that a client shares with the server can hold more values than the tensor's type counts.
int32_t AsCount(int64_t number) {
  return static_cast<int32_t>(std::min<int64_t>(number, std::numeric_limits<int32_t>::max()));
}

// The engine does not say whose rows did not come: alone, each request learns that of its own. The time for rows is
// over by then, and those that came are in the engine's cache.
void CheckWhose(bool is_degraded, const std::vector<Request*>& requests) {
  if (!is_degraded || requests.size() == 1) return;
  throw Failure(TRITONSERVER_ERROR_UNAVAILABLE, "some of the batch's rows did not come");
}

}  // namespace

FeaturesStep::FeaturesStep(std::shared_ptr<const ServedVersion> version, TRITONSERVER_MemoryType wanted)
    : version_(std::move(version)), wanted_(wanted), transform_(version_->OpenTransform()) {
  CheckEngine(rh_transform_get_shape(transform_.get(), &shape_));
  Require(shape_.num_features == version_->num_features(), "the version's transform has ", shape_.num_features,
          " categorical features, its manifest ", version_->num_features());
}

void FeaturesStep::CheckKind(bool is_on_gpu) const {
  Require(is_on_gpu || wanted_ != TRITONSERVER_MEMORY_GPU,
          "the parameter output_memory is 'gpu', but the model's instances are on the CPU: set their kind to KIND_GPU, "
          "or leave the parameter out");
}

void FeaturesStep::Run(const std::vector<Request*>& requests, Workspace* workspace) const {
  const RawBatches raw(requests);
  for (const rh_raw_batch& batch : raw.batches) CheckColumns(batch);
  const SharedRows dense(kDense, shape_.num_floats, raw.num_rows, requests, &workspace->dense);
  const rh_model_input input = Transform(raw, dense.data(), workspace);
  rh_engine_batch batch{};
  batch.ids = input.ids;
  batch.offsets = input.offsets;
  batch.num_ids = input.num_ids;
  batch.batch_size = raw.num_rows;
  batch.id_type = RH_INT64;
  batch.started_ns = workspace->started_ns;
  const bool is_degraded = LookUp(requests, batch, workspace);
  dense.Split(requests, NumRawRows);
  const int64_t* num_unknown = input.num_unknown;
  ForEachAlone(requests, [&](Request* request) {
    const int64_t own = *num_unknown++;
    *request->Output<int32_t>(kDegraded, {1}) = is_degraded ? 1 : 0;
    *request->Output<int32_t>(kUnknown, {1}) = AsCount(own);
  });
}

rh_model_input FeaturesStep::Transform(const RawBatches& raw, float* dense, Workspace* workspace) const {
  rh_model_input input{};
  input.dense = dense;
  input.ids_capacity = raw.num_rows * shape_.num_features + raw.num_values;
  input.ids = workspace->ids.OfSize(input.ids_capacity);
  input.offsets = workspace->offsets.OfSize(shape_.num_features * raw.num_rows + 1);
  const auto num_batches = static_cast<int64_t>(raw.batches.size());
  input.num_unknown = workspace->num_unknown.OfSize(num_batches);
  CheckEngine(rh_transform_apply(transform_.get(), raw.batches.data(), num_batches, &input, &kOneThread));
  return input;
}

// Gives each request its embeddings; returns whether they are degraded.
bool FeaturesStep::LookUp(const std::vector<Request*>& requests, const rh_engine_batch& batch,
                          Workspace* workspace) const {
  const int64_t width = version_->num_columns();
  if (DeviceStream* const stream = workspace->stream.get(); stream != nullptr) {
    DeviceRows embeddings(kEmbeddings, width, batch.batch_size, requests, wanted_, stream);
    const bool is_degraded = version_->LookupOnDevice(batch, embeddings.data(), stream->handle());
    CheckWhose(is_degraded, requests);
    embeddings.Split(requests, NumRawRows);
    return is_degraded;
  }
  const SharedRows embeddings(kEmbeddings, width, batch.batch_size, requests, &workspace->embeddings);
  const bool is_degraded = version_->Lookup(batch, embeddings.data());
  CheckWhose(is_degraded, requests);
  embeddings.Split(requests, NumRawRows);
  return is_degraded;
}

// Without columns a tensor without a byte has any number of rows: memory for answers is only taken for batches that
// have the model's columns, and so a value or a length for each row.
void FeaturesStep::CheckColumns(const rh_raw_batch& batch) const {
  const bool fits = batch.num_float_columns == shape_.num_floats && batch.num_int_columns == shape_.num_ints &&
                    batch.num_text_columns == shape_.num_texts;
  if (!fits) CheckEngine(rh_transform_check(transform_.get(), &batch));
}

}  // namespace rankhouse::triton
