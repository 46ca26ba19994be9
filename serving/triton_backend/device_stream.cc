#include "device_stream.h"

#include "failure.h"

namespace rankhouse::triton {
namespace {

constexpr unsigned kWaitsForNoOther = 1;  // CU_STREAM_NON_BLOCKING

}  // namespace

DeviceStream::DeviceStream(int64_t device) : context_(device) {
  context_.Use([&] { CheckDriver(Cuda().create_stream(&stream_, kWaitsForNoOther), "make a stream of", device); });
}

DeviceStream::~DeviceStream() {
  try {
    context_.Use([&] {
      Cuda().wait_for_stream(stream_);
      Cuda().destroy_stream(stream_);
      if (floats_ != nullptr) Cuda().free(floats_);
    });
  } catch (const std::exception& error) {
    Log(error);
  }
}

float* DeviceStream::FloatsOfSize(int64_t size) {
  if (size <= capacity_) return static_cast<float*>(floats_);
  Wait();
  context_.Use([&] {
    if (floats_ != nullptr) Cuda().free(floats_);
    floats_ = nullptr;
    capacity_ = 0;
    CheckDriver(Cuda().allocate(&floats_, size * sizeof(float)), "allocate memory for embeddings on", device());
    capacity_ = size;
  });
  return static_cast<float*>(floats_);
}

void DeviceStream::Copy(const void* from, void* to, uint64_t num_bytes) {
  if (num_bytes == 0) return;
  context_.Use([&] { CheckDriver(Cuda().queue_copy(to, from, num_bytes, stream_), "copy embeddings from", device()); });
}

void DeviceStream::Wait() {
  context_.Use([&] { CheckDriver(Cuda().wait_for_stream(stream_), "look embeddings up on", device()); });
}

}  // namespace rankhouse::triton
