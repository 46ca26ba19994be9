#include "cuda_driver.h"

#include <dlfcn.h>

#include "failure.h"

namespace rankhouse::triton {
namespace {

// The library, once it has been looked for.
struct Library {
  Library() : handle(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    int (*init)(unsigned) = nullptr;
    const bool has_all =
        Find("cuInit", &init) && Find("cuDeviceGet", &driver.get_device) &&
        Find("cuDevicePrimaryCtxRetain", &driver.retain_context) &&
        Find("cuDevicePrimaryCtxRelease_v2", &driver.release_context) &&
        Find("cuCtxPushCurrent_v2", &driver.push_context) && Find("cuCtxPopCurrent_v2", &driver.pop_context) &&
        Find("cuGetErrorName", &driver.name_error) && Find("cuMemcpy", &driver.copy) &&
        Find("cuMemcpyAsync", &driver.queue_copy) && Find("cuMemAlloc_v2", &driver.allocate) &&
        Find("cuMemFree_v2", &driver.free) && Find("cuStreamCreate", &driver.create_stream) &&
        Find("cuStreamDestroy_v2", &driver.destroy_stream) && Find("cuStreamSynchronize", &driver.wait_for_stream);
    is_usable = has_all && init(0) == 0;
  }

  template <typename Function>
  bool Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle, name));
    return *function != nullptr;
  }

  void* handle;  // kept for good
  CudaDriver driver = {};
  bool is_usable = false;
};

}  // namespace

const CudaDriver& Cuda() {
  static const Library library;
  if (library.is_usable) return library.driver;
  throw Failure(TRITONSERVER_ERROR_UNSUPPORTED,
                library.handle == nullptr ? "this machine has no CUDA driver (libcuda.so.1)"
                                          : "this machine's CUDA driver (libcuda.so.1) finds no GPU, or is too old");
}

void CheckDriver(int status, const char* what, int64_t device) {
  if (status == 0) return;
  const char* name = nullptr;
  const bool has_name = Cuda().name_error(status, &name) == 0 && name != nullptr;
  throw Failure(TRITONSERVER_ERROR_INTERNAL, Text("CUDA's driver could not ", what, " GPU ", device, ": ",
                                                  has_name ? name : "unknown error", " (", status, ")"));
}

PrimaryContext::PrimaryContext(int64_t device) : device_(device) {
  CheckDriver(Cuda().get_device(&handle_, static_cast<int>(device)), "find", device);
  CheckDriver(Cuda().retain_context(&context_, handle_), "use", device);
}

}  // namespace rankhouse::triton
