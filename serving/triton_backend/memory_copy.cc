#include "memory_copy.h"

#include <dlfcn.h>

#include <cstring>

#include "failure.h"

namespace rankhouse::triton {
namespace {

// The few functions of CUDA's driver that a copy needs; the types are those of cuda.h on 64-bit systems.
class Driver {
 public:
  static const Driver& Instance() {
    static const Driver driver;
    return driver;
  }

  void Copy(int64_t device, const void* from, void* to, uint64_t num_bytes) const {
    Require(library_ != nullptr && set_context_ != nullptr,
            "a tensor lies in GPU memory, and this machine has no CUDA driver; send it in host memory");
    int handle = 0;
    void* context = nullptr;
    // A process has one primary context for each device, and Triton's own copies use it too.
    Done(get_device_(&handle, static_cast<int>(device)), device);
    Done(retain_context_(&context, handle), device);
    const int status = set_context_(context) != 0 ? -1 : copy_(to, from, num_bytes);
    release_context_(handle);
    Done(status, device);
  }

 private:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    Find("cuInit", &init_);
    Find("cuDeviceGet", &get_device_);
    Find("cuDevicePrimaryCtxRetain", &retain_context_);
    Find("cuDevicePrimaryCtxRelease_v2", &release_context_);
    Find("cuMemcpy", &copy_);
    if (init_ != nullptr && init_(0) == 0) Find("cuCtxSetCurrent", &set_context_);
  }

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
  }

  static void Done(int status, int64_t device) {
    if (status == 0) return;
    throw Failure(TRITONSERVER_ERROR_INTERNAL,
                  Text("CUDA's driver could not copy a tensor from or to GPU ", device, " (status ", status, ")"));
  }

  void* library_;
  int (*init_)(unsigned) = nullptr;
  int (*get_device_)(int*, int) = nullptr;
  int (*retain_context_)(void**, int) = nullptr;
  int (*release_context_)(int) = nullptr;
  int (*set_context_)(void*) = nullptr;
  int (*copy_)(void*, const void*, size_t) = nullptr;  // addresses are unified: they say which side is the GPU's
};

}  // namespace

void Copy(const Place& place, const void* from, void* to, uint64_t num_bytes) {
  if (num_bytes == 0) return;
  if (place.is_host()) {
    std::memcpy(to, from, num_bytes);
  } else {
    Driver::Instance().Copy(place.device, from, to, num_bytes);
  }
}

}  // namespace rankhouse::triton
