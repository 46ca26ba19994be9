// CUDA's driver, as far as the backend needs it. It is only looked for where it is needed, so no CUDA is needed to
// build or to load this library. The runtime that the engine is built with works in the same contexts and takes its
// streams.
#ifndef RANKHOUSE_TRITON_BACKEND_CUDA_DRIVER_H_
#define RANKHOUSE_TRITON_BACKEND_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>

namespace rankhouse::triton {

// The driver's functions; the types are those of cuda.h on 64-bit systems, where each returns 0 or an error's number.
struct CudaDriver {
  int (*get_device)(int*, int);
  int (*retain_context)(void**, int);
  int (*release_context)(int);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*name_error)(int, const char**);
  int (*copy)(void*, const void*, size_t);  // addresses are unified: they say which side is the GPU's
  int (*queue_copy)(void*, const void*, size_t, void*);
  int (*allocate)(void**, size_t);
  int (*free)(void*);
  int (*create_stream)(void**, unsigned);
  int (*destroy_stream)(void*);
  int (*wait_for_stream)(void*);
};

// Throws Failure where this machine has no driver, or no GPU that it drives.
const CudaDriver& Cuda();

// Throws Failure with the driver's name for the error unless the status is 0: "CUDA's driver could not <what> GPU 0".
void CheckDriver(int status, const char* what, int64_t device);

// A GPU's primary context, of which a process has one that all libraries use. Any thread may use it.
class PrimaryContext {
 public:
  explicit PrimaryContext(int64_t device);
  ~PrimaryContext() { Cuda().release_context(handle_); }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  int64_t device() const { return device_; }

  // Calls body() with the context as this thread's current one.
  template <typename Body>
  void Use(Body body) const {
    CheckDriver(Cuda().push_context(context_), "use", device_);
    const Pop pop;
    body();
  }

 private:
  struct Pop {
    ~Pop() {
      void* ignored = nullptr;
      Cuda().pop_context(&ignored);
    }
  };

  const int64_t device_;
  int handle_ = 0;
  void* context_ = nullptr;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_CUDA_DRIVER_H_
