#include <algorithm>
#include <utility>

#include "failure.h"
#include "raw_batch.h"
#include "shared_rows.h"
#include "step.h"

namespace rankhouse::triton {
namespace {

const TensorSpec kDense{"dense", TRITONSERVER_TYPE_FP32, 2};
const TensorSpec kIds{"ids", TRITONSERVER_TYPE_INT64, 1};
const TensorSpec kLengths{"lengths", TRITONSERVER_TYPE_INT32, 2};
const TensorSpec kEmbeddings{"embeddings", TRITONSERVER_TYPE_FP32, 2};

// A compiled transform and the shape of its output.
class Transform {
 public:
  explicit Transform(const ServedVersion& version) : transform_(version.OpenTransform()) {
    CheckEngine(rh_transform_get_shape(transform_.get(), &shape_));
    Require(shape_.num_features == version.num_features(), "the version's transform has ", shape_.num_features,
            " categorical features, its manifest ", version.num_features());
  }

  int64_t num_floats() const { return shape_.num_floats; }
  int64_t num_features() const { return shape_.num_features; }

  // Transforms all batches; ids and their offsets are left in the workspace.
  rh_model_input Apply(const RawBatches& raw, float* dense, Workspace* workspace) const {
    rh_model_input input{};
    input.dense = dense;
    input.ids_capacity = raw.num_rows * num_features() + raw.num_values;
    input.ids = workspace->ids.OfSize(input.ids_capacity);
    input.offsets = workspace->offsets.OfSize(num_features() * raw.num_rows + 1);
    CheckEngine(rh_transform_apply(transform_.get(), raw.batches.data(), static_cast<int64_t>(raw.batches.size()),
                                   &input, &kOneThread));
    return input;
  }

 private:
  TransformHandle transform_;
  rh_transform_shape shape_{};
};

// Raw values to dense features and ids.
class TransformStep : public Step {
 public:
  explicit TransformStep(const ServedVersion& version) : transform_(version) {}

  const std::vector<TensorSpec>& inputs() const override { return kRawInputs; }

  void Run(const std::vector<Request*>& requests, Workspace* workspace) const override {
    const RawBatches raw(requests);
    const SharedRows dense(kDense, transform_.num_floats(), raw.num_rows, requests, &workspace->dense);
    const rh_model_input input = transform_.Apply(raw, dense.data(), workspace);
    dense.Split(requests, NumRawRows);
    int64_t end = 0;
    ForEachAlone(requests, [&](Request* request) {
      const int64_t begin = end;
      end += NumRawRows(*request);
      if (!request->has_failed()) OutputBags(input, raw.num_rows, begin, end, request);
    });
  }

 private:
  // Writes the bags of rows [begin, end) of a batch of `num_rows`.
  void OutputBags(const rh_model_input& input, int64_t num_rows, int64_t begin, int64_t end, Request* request) const {
    int64_t num_ids = 0;
    for (int64_t f = 0; f < transform_.num_features(); ++f) {
      num_ids += input.offsets[f * num_rows + end] - input.offsets[f * num_rows + begin];
    }
    auto* ids = request->Output<int64_t>(kIds, {num_ids});
    auto* lengths = request->Output<int32_t>(kLengths, {transform_.num_features(), end - begin});
    for (int64_t f = 0; f < transform_.num_features(); ++f) {
      const int64_t* offsets = input.offsets + f * num_rows;
      ids = std::copy(input.ids + offsets[begin], input.ids + offsets[end], ids);
      for (int64_t b = begin; b < end; ++b) *lengths++ = static_cast<int32_t>(offsets[b + 1] - offsets[b]);
    }
  }

  Transform transform_;
};

// Ids to pooled embeddings.
class EmbeddingStep : public Step {
 public:
  explicit EmbeddingStep(std::shared_ptr<const ServedVersion> version) : version_(std::move(version)) {}

  const std::vector<TensorSpec>& inputs() const override { return inputs_; }

  void Run(const std::vector<Request*>& requests, Workspace* workspace) const override {
    rh_engine_batch batch{};
    batch.id_type = RH_INT64;
    for (const Request* request : requests) {
      CheckLengths(*request);
      batch.batch_size += NumRows(*request);
      batch.num_ids += request->input(0).size;
    }
    if (requests.size() == 1) {
      batch.ids = requests[0]->input(0).data;
      batch.lengths = requests[0]->input(1).as<int32_t>();
    } else {
      Join(requests, &batch, workspace);
    }
    const SharedRows embeddings(kEmbeddings, version_->num_columns(), batch.batch_size, requests,
                                &workspace->embeddings);
    version_->Lookup(batch, embeddings.data());
    embeddings.Split(requests, NumRows);
  }

 private:
  static int64_t NumRows(const Request& request) { return request.input(1).shape[1]; }

  // Joined with others, ids that are too many here would be too few there: each request must add up by itself.
  void CheckLengths(const Request& request) const {
    const Tensor& lengths = request.input(1);
    Require(lengths.shape[0] == version_->num_features(), "lengths has shape ", lengths.ShapeText(), "; expected (",
            version_->num_features(), ", B), one row for each of the version's features");
    int64_t sum = 0;
    bool is_negative = false;
    for (int64_t i = 0; i < lengths.size; ++i) {
      const int32_t length = lengths.as<int32_t>()[i];
      is_negative |= length < 0;
      sum += length;
    }
    Require(!is_negative && sum == request.input(0).size, "lengths add up to ", sum, ", there are ",
            request.input(0).size, " ids; expected one length of 0 or more for each bag");
  }

  // Bags lie feature by feature, so those of several requests interleave.
  void Join(const std::vector<Request*>& requests, rh_engine_batch* batch, Workspace* workspace) const {
    std::vector<const int64_t*> next_ids;
    for (const Request* request : requests) next_ids.push_back(request->input(0).as<int64_t>());
    int64_t* ids = workspace->ids.OfSize(batch->num_ids);
    int32_t* lengths = workspace->lengths.OfSize(version_->num_features() * batch->batch_size);
    batch->ids = ids;
    batch->lengths = lengths;
    for (int64_t f = 0; f < version_->num_features(); ++f) {
      for (size_t k = 0; k < requests.size(); ++k) {
        const int32_t* own = requests[k]->input(1).as<int32_t>() + f * NumRows(*requests[k]);
        int64_t count = 0;
        for (int64_t b = 0; b < NumRows(*requests[k]); ++b) count += * lengths++ = own[b];
        ids = std::copy(next_ids[k], next_ids[k] + count, ids);
        next_ids[k] += count;
      }
    }
  }

  const std::vector<TensorSpec> inputs_ = {kIds, kLengths};
  std::shared_ptr<const ServedVersion> version_;
};

// Raw values to dense features and embeddings; the ids never leave the processor's cache.
class FeaturesStep : public Step {
 public:
  explicit FeaturesStep(std::shared_ptr<const ServedVersion> version)
      : transform_(*version), version_(std::move(version)) {}

  const std::vector<TensorSpec>& inputs() const override { return kRawInputs; }

  void Run(const std::vector<Request*>& requests, Workspace* workspace) const override {
    const RawBatches raw(requests);
    const SharedRows dense(kDense, transform_.num_floats(), raw.num_rows, requests, &workspace->dense);
    const SharedRows embeddings(kEmbeddings, version_->num_columns(), raw.num_rows, requests, &workspace->embeddings);
    const rh_model_input input = transform_.Apply(raw, dense.data(), workspace);
    rh_engine_batch batch{};
    batch.ids = input.ids;
    batch.offsets = input.offsets;
    batch.num_ids = input.num_ids;
    batch.batch_size = raw.num_rows;
    batch.id_type = RH_INT64;
    version_->Lookup(batch, embeddings.data());
    dense.Split(requests, NumRawRows);
    embeddings.Split(requests, NumRawRows);
  }

 private:
  Transform transform_;
  std::shared_ptr<const ServedVersion> version_;
};

}  // namespace

std::unique_ptr<Step> MakeStep(const std::string& name, std::shared_ptr<const ServedVersion> version) {
  if (name == "transform") return std::make_unique<TransformStep>(*version);
  if (name == "embedding") return std::make_unique<EmbeddingStep>(std::move(version));
  Require(name == "features", "the parameter step is '", name, "'; expected transform, embedding or features");
  return std::make_unique<FeaturesStep>(std::move(version));
}

}  // namespace rankhouse::triton
