// Outputs that several requests share while they are computed.
#ifndef RANKHOUSE_TRITON_BACKEND_SHARED_ROWS_H_
#define RANKHOUSE_TRITON_BACKEND_SHARED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "failure.h"
#include "step.h"

namespace rankhouse::triton {

// Runs for each request what only that one can have wrong.
template <typename Body>
void ForEachAlone(const std::vector<Request*>& requests, Body body) {
  for (Request* request : requests) {
    try {
      body(request);
    } catch (const std::exception& error) {
      request->SetError(AsError(error));
    }
  }
}

// A matrix of float32, [rows, width], of which each request has a run of rows. That of a single request is its output
// itself, so nothing is copied.
class SharedRows {
 public:
  SharedRows(const TensorSpec& spec, int64_t width, int64_t num_rows, const std::vector<Request*>& requests,
             Buffer<float>* buffer)
      : spec_(spec), width_(width), is_shared_(requests.size() > 1) {
    data_ = is_shared_ ? buffer->OfSize(num_rows * width) : requests[0]->Output<float>(spec, {num_rows, width});
  }

  float* data() const { return data_; }

  // Hands each request its rows, as many as `num_rows_of(request)` says.
  template <typename NumRows>
  void Split(const std::vector<Request*>& requests, NumRows num_rows_of) const {
    if (!is_shared_) return;
    const float* begin = data_;
    ForEachAlone(requests, [&](Request* request) {
      const int64_t num_rows = num_rows_of(*request);
      const float* from = begin;
      begin += num_rows * width_;
      std::copy(from, begin, request->Output<float>(spec_, {num_rows, width_}));
    });
  }

 private:
  const TensorSpec spec_;
  const int64_t width_;
  const bool is_shared_;
  float* data_;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_SHARED_ROWS_H_
