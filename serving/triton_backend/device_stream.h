// A stream of a GPU, and memory there.
#ifndef RANKHOUSE_TRITON_BACKEND_DEVICE_STREAM_H_
#define RANKHOUSE_TRITON_BACKEND_DEVICE_STREAM_H_

#include <cstdint>

#include "cuda_driver.h"

namespace rankhouse::triton {

// One thread at a time uses it. What is queued is done in its order; whoever queues it waits before others may look.
class DeviceStream {
 public:
  // Throws Failure where there is no such GPU.
  explicit DeviceStream(int64_t device);
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  int64_t device() const { return context_.device(); }
  // A cudaStream_t.
  void* handle() const { return stream_; }

  // An array on the GPU that is kept from batch to batch, and grows to what the largest needed: for that it waits. Its
  // content does not last. NULL for none.
  float* FloatsOfSize(int64_t size);

  // Queues a copy between any memory of GPUs or the host; the host's is pinned, or the call waits.
  void Copy(const void* from, void* to, uint64_t num_bytes);

  // Throws Failure if something that was queued failed.
  void Wait();

 private:
  const PrimaryContext context_;
  void* stream_ = nullptr;
  void* floats_ = nullptr;
  int64_t capacity_ = 0;  // floats
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_DEVICE_STREAM_H_
