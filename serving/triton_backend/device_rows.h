// An output that is computed on a GPU.
#ifndef RANKHOUSE_TRITON_BACKEND_DEVICE_ROWS_H_
#define RANKHOUSE_TRITON_BACKEND_DEVICE_ROWS_H_

#include <cstdint>
#include <vector>

#include "device_stream.h"
#include "shared_rows.h"

namespace rankhouse::triton {

// As SharedRows, in the memory of a stream's GPU. Where Triton gives a single request memory there, that is the matrix
// itself; else, and where several requests share the matrix, each gets a copy of its rows wherever its memory lies.
class DeviceRows {
 public:
  // Asks Triton for memory of the given type, and takes what it gives.
  DeviceRows(const TensorSpec& spec, int64_t width, int64_t num_rows, const std::vector<Request*>& requests,
             TRITONSERVER_MemoryType wanted, DeviceStream* stream);
  // When this is gone, nothing writes to a request's memory any more.
  ~DeviceRows();
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;

  // Device memory; what is queued on the stream writes it.
  float* data() const { return data_; }

  // Hands each request its rows, as many as `num_rows_of(request)` says, and waits for all that was queued. If that
  // failed, it is every request's error.
  template <typename NumRows>
  void Split(const std::vector<Request*>& requests, NumRows num_rows_of) {
    const float* begin = data_;
    ForEachAlone(requests, [&](Request* request) {
      const int64_t num_rows = num_rows_of(*request);
      const float* from = begin;
      begin += num_rows * width_;
      const OutputMemory to = is_shared_ ? MemoryOf(request, num_rows) : own_;
      if (to.data != from) stream_->Copy(from, to.data, num_rows * width_ * sizeof(float));
    });
    Wait(requests);
  }

 private:
  OutputMemory MemoryOf(Request* request, int64_t num_rows) const;
  void Wait(const std::vector<Request*>& requests);

  const TensorSpec spec_;
  const int64_t width_;
  const bool is_shared_;
  const Place wanted_;
  DeviceStream* const stream_;
  OutputMemory own_;  // of a single request
  float* data_;
  bool is_done_ = false;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_DEVICE_ROWS_H_
