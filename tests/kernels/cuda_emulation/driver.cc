// As much of CUDA's driver as Triton's backend calls, on the host: a libcuda.so.1 of two GPUs for tests. Memory of a
// GPU is the host's. A queued copy is done when its stream is waited for, and no sooner: who forgets to wait sees what
// was there before. Calls that need a context fail without one, as the driver's do.
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "failing_calls.h"

namespace {

constexpr int kNumDevices = 2;
constexpr int kFailed = 999, kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400, kOutOfMemory = 2;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Stream {
  std::vector<Copy> copies;
};

std::atomic<int> num_retained{0};
int contexts[kNumDevices];
thread_local std::vector<void*> current;

// What a call returns that needs a context.
int Result(int failure = kFailed) {
  if (current.empty()) return kInvalidContext;
  return cuda_emulation::FailsNow() ? failure : 0;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default"))) int

// How many contexts are retained, for tests.
EXPORTED emulated_driver_num_contexts() { return num_retained; }

EXPORTED cuInit(unsigned) { return 0; }

EXPORTED cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return 0;
}

EXPORTED cuDeviceGet(int* handle, int number) {
  if (number < 0 || number >= kNumDevices) return kInvalidDevice;
  *handle = number;
  return 0;
}

EXPORTED cuDevicePrimaryCtxRetain(void** context, int handle) {
  if (cuda_emulation::FailsNow()) return kFailed;
  ++num_retained;
  *context = &contexts[handle];
  return 0;
}

EXPORTED cuDevicePrimaryCtxRelease_v2(int) {
  --num_retained;
  return 0;
}

// Does not fail: without a context nothing could be freed any more.
EXPORTED cuCtxPushCurrent_v2(void* context) {
  current.push_back(context);
  return 0;
}

EXPORTED cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}

EXPORTED cuMemAlloc_v2(void** memory, size_t bytes) {
  const int result = bytes == 0 ? kFailed : Result(kOutOfMemory);
  if (result == 0) *memory = std::malloc(bytes);
  return result;
}

EXPORTED cuMemFree_v2(void* memory) {
  if (current.empty()) return kInvalidContext;
  std::free(memory);
  return 0;
}

EXPORTED cuMemcpy(void* to, const void* from, size_t bytes) {
  const int result = Result();
  if (result == 0) std::memcpy(to, from, bytes);
  return result;
}

EXPORTED cuStreamCreate(Stream** stream, unsigned) {
  const int result = Result();
  if (result == 0) *stream = new Stream;
  return result;
}

EXPORTED cuStreamDestroy_v2(Stream* stream) {
  if (stream == nullptr || !stream->copies.empty()) return kInvalidHandle;
  delete stream;
  return 0;
}

EXPORTED cuMemcpyAsync(void* to, const void* from, size_t bytes, Stream* stream) {
  const int result = Result();
  if (result == 0) stream->copies.push_back({to, from, bytes});
  return result;
}

EXPORTED cuStreamSynchronize(Stream* stream) {
  const int result = Result();
  for (const Copy& copy : std::exchange(stream->copies, {})) {
    if (result == 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  return result;
}
