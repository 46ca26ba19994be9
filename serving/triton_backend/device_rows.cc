#include "device_rows.h"

namespace rankhouse::triton {
namespace {

Place PlaceOn(int64_t device, TRITONSERVER_MemoryType type) {
  return {type, type == TRITONSERVER_MEMORY_GPU ? device : 0};
}

bool IsOn(int64_t device, const OutputMemory& memory) {
  return !memory.place.is_host() && memory.place.device == device &&
         reinterpret_cast<uintptr_t>(memory.data) % sizeof(float) == 0;
}

}  // namespace

DeviceRows::DeviceRows(const TensorSpec& spec, int64_t width, int64_t num_rows, const std::vector<Request*>& requests,
                       TRITONSERVER_MemoryType wanted, DeviceStream* stream)
    : spec_(spec),
      width_(width),
      is_shared_(requests.size() > 1),
      wanted_(PlaceOn(stream->device(), wanted)),
      stream_(stream) {
  if (!is_shared_) own_ = MemoryOf(requests[0], num_rows);
  const bool is_own = !is_shared_ && IsOn(stream->device(), own_);
  data_ = is_own ? static_cast<float*>(own_.data) : stream->FloatsOfSize(num_rows * width);
}

DeviceRows::~DeviceRows() {
  if (is_done_) return;
  try {
    stream_->Wait();
  } catch (const std::exception& error) {
    Log(error);
  }
}

OutputMemory DeviceRows::MemoryOf(Request* request, int64_t num_rows) const {
  return request->OutputIn<float>(wanted_, spec_, {num_rows, width_});
}

void DeviceRows::Wait(const std::vector<Request*>& requests) {
  is_done_ = true;
  try {
    stream_->Wait();
  } catch (const std::exception& error) {
    for (Request* request : requests) request->SetError(AsError(error));
  }
}

}  // namespace rankhouse::triton
