#include "cuda/device.cuh"
#include "engine/device_memory.h"

namespace rankhouse::engine {

void CheckDevice(int32_t device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Error(RH_INVALID_ARGUMENT, StrCat("'device' is ", device, ", but CUDA finds no GPU here (",
                                            cudaGetErrorString(error), "): leave the option out"));
  }
  Require(device < count, "'device' is ", device, ", but this machine has ", count, " GPUs: expected 0 to ", count - 1);
}

CurrentDevice::CurrentDevice(int32_t device) {
  CheckCuda(cudaGetDevice(&before_), "asking for the current device");
  CheckCuda(cudaSetDevice(device), "making a device the current one");
}

CurrentDevice::~CurrentDevice() { Ignore(cudaSetDevice(before_)); }

void* ThreadStream() { return cudaStreamPerThread; }

void CopyToDevice(void* device, const void* host, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  CheckCuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)),
            "copying a batch to the device");
}

void CopyFromDevice(void* host, const void* device, int64_t bytes, void* stream) {
  CopyToHost(static_cast<char*>(host), static_cast<const char*>(device), bytes, static_cast<cudaStream_t>(stream));
}

DeviceScratch::DeviceScratch() {
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  last_use_ = event;
}

DeviceScratch::~DeviceScratch() {
  Ignore(cudaEventSynchronize(static_cast<cudaEvent_t>(last_use_)));
  Ignore(cudaEventDestroy(static_cast<cudaEvent_t>(last_use_)));
}

bool DeviceScratch::IsIdle() const {
  if (cudaEventQuery(static_cast<cudaEvent_t>(last_use_)) == cudaSuccess) return true;
  cudaGetLastError();  // "not ready" counts as an error too, which CUB or the caller would find and take for their own
  return false;
}

void DeviceScratch::Begin(int64_t device_bytes, int64_t host_bytes) {
  CheckCuda(cudaEventSynchronize(static_cast<cudaEvent_t>(last_use_)), "waiting for an earlier lookup");
  if (device_bytes > device_bytes_) {
    device_.reset();
    device_bytes_ = 0;
    void* memory = nullptr;
    CheckCuda(cudaMalloc(&memory, device_bytes), "allocating a lookup's memory on the device");
    device_.reset(static_cast<char*>(memory));
    device_bytes_ = device_bytes;
  }
  if (host_bytes > host_bytes_) {
    host_.reset();
    host_bytes_ = 0;
    void* memory = nullptr;
    CheckCuda(cudaMallocHost(&memory, host_bytes), "allocating a lookup's pinned memory");
    host_.reset(static_cast<char*>(memory));
    host_bytes_ = host_bytes;
  }
}

void DeviceScratch::End(void* stream) noexcept {
  Ignore(cudaEventRecord(static_cast<cudaEvent_t>(last_use_), static_cast<cudaStream_t>(stream)));
}

void DeviceScratch::FreeDevice::operator()(char* memory) const { Ignore(cudaFree(memory)); }

void DeviceScratch::FreeHost::operator()(char* memory) const { Ignore(cudaFreeHost(memory)); }

}  // namespace rankhouse::engine
