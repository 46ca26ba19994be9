// The raw values of requests, as the compiled transform takes them.
#ifndef RANKHOUSE_TRITON_BACKEND_RAW_BATCH_H_
#define RANKHOUSE_TRITON_BACKEND_RAW_BATCH_H_

#include <cstdint>
#include <vector>

#include "rankhouse/transform.h"
#include "request.h"

namespace rankhouse::triton {

// The inputs of steps that take raw values, in the order in which RawBatches reads them.
extern const std::vector<TensorSpec> kRawInputs;

// How many rows a request has that Read found these inputs in.
int64_t NumRawRows(const Request& request);

// The requests as batches of the compiled transform, without a copy of values.
struct RawBatches {
  // Throws Failure if the tensors of a request have different numbers of rows. What else may be wrong the transform
  // finds.
  explicit RawBatches(const std::vector<Request*>& requests);

  std::vector<rh_raw_batch> batches;  // one for each request
  int64_t num_rows = 0;               // of all requests
  int64_t num_values = 0;             // integers and texts of all requests
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_RAW_BATCH_H_
