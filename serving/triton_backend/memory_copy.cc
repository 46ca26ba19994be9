#include "memory_copy.h"

#include <cstring>

#include "cuda_driver.h"
#include "failure.h"

namespace rankhouse::triton {
namespace {

void CopyByDriver(int64_t device, const void* from, void* to, uint64_t num_bytes) {
  try {
    const PrimaryContext context(device);
    context.Use([&] { CheckDriver(Cuda().copy(to, from, num_bytes), "copy a tensor from or to", device); });
  } catch (const Failure& failure) {
    if (failure.code() != TRITONSERVER_ERROR_UNSUPPORTED) throw;
    throw Failure(failure.code(),
                  Text("a tensor lies in GPU memory, and ", failure.what(), "; send it in host memory"));
  }
}

}  // namespace

void Copy(const Place& place, const void* from, void* to, uint64_t num_bytes) {
  if (num_bytes == 0) return;
  if (place.is_host()) {
    std::memcpy(to, from, num_bytes);
  } else {
    CopyByDriver(place.device, from, to, num_bytes);
  }
}

}  // namespace rankhouse::triton
