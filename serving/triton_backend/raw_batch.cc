#include "raw_batch.h"

#include "failure.h"

namespace rankhouse::triton {

const std::vector<TensorSpec> kRawInputs = {
    {"float_values", TRITONSERVER_TYPE_FP64, 2},       {"int_values", TRITONSERVER_TYPE_INT64, 1},
    {"int_lengths", TRITONSERVER_TYPE_INT32, 2, true}, {"text_bytes", TRITONSERVER_TYPE_UINT8, 1},
    {"text_sizes", TRITONSERVER_TYPE_INT32, 1, true},  {"text_lengths", TRITONSERVER_TYPE_INT32, 2, true},
};

namespace {

rh_raw_batch AsRawBatch(const Request& request) {
  const Tensor& floats = request.input(0);
  const Tensor& ints = request.input(1);
  const Tensor& int_lengths = request.input(2);
  const Tensor& bytes = request.input(3);
  const Tensor& sizes = request.input(4);
  const Tensor& text_lengths = request.input(5);
  rh_raw_batch batch{};
  batch.num_rows = NumRawRows(request);
  for (size_t index : {2, 5}) {
    Require(request.input(index).shape[0] == batch.num_rows, kRawInputs[index].name, " has shape ",
            request.input(index).ShapeText(), "; expected two dimensions and ", batch.num_rows, " rows");
  }
  batch.float_values = floats.as<double>();
  batch.int_values = ints.as<int64_t>();
  batch.int_lengths = int_lengths.as<int32_t>();
  batch.text_bytes = bytes.as<uint8_t>();
  batch.text_sizes = sizes.as<int32_t>();
  batch.text_lengths = text_lengths.as<int32_t>();
  batch.num_float_columns = floats.shape[1];
  batch.num_int_columns = int_lengths.shape[1];
  batch.num_text_columns = text_lengths.shape[1];
  batch.num_ints = ints.size;
  batch.num_texts = sizes.size;
  batch.num_text_bytes = bytes.size;
  return batch;
}

}  // namespace

int64_t NumRawRows(const Request& request) { return request.input(0).shape[0]; }

RawBatches::RawBatches(const std::vector<Request*>& requests) {
  batches.reserve(requests.size());
  for (const Request* request : requests) {
    const rh_raw_batch& batch = batches.emplace_back(AsRawBatch(*request));
    num_rows += batch.num_rows;
    num_values += batch.num_ints + batch.num_texts;
  }
}

}  // namespace rankhouse::triton
