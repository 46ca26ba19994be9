// A GPU's memory, as lookups use it. In a build without CUDA all of this throws Error RH_UNSUPPORTED.
#ifndef RANKHOUSE_ENGINE_DEVICE_MEMORY_H_
#define RANKHOUSE_ENGINE_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>

namespace rankhouse::engine {

// Throws Error where the option 'device' cannot be met: RH_UNSUPPORTED in a build without CUDA, RH_INVALID_ARGUMENT
// where there is no such GPU.
void CheckDevice(int32_t device);

// Makes a GPU this thread's current one for the time of this object.
class CurrentDevice {
 public:
  explicit CurrentDevice(int32_t device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int32_t before_ = 0;
};

// A stream of this thread's own, which waits for no other.
void* ThreadStream();

// Queues a copy; `host` is pinned, and left alone until the stream has passed it.
void CopyToDevice(void* device, const void* host, int64_t bytes, void* stream);

// Copies, and waits for the stream.
void CopyFromDevice(void* host, const void* device, int64_t bytes, void* stream);

// Working memory of lookups, on the device and pinned on the host: one lookup at a time uses it. It grows to what the
// largest one needed.
class DeviceScratch {
 public:
  DeviceScratch();
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  // Whether the device is done with the last lookup that used it.
  bool IsIdle() const;

  // Waits for the last lookup that used it, and gets room for the next one, on a boundary of 256 bytes.
  void Begin(int64_t device_bytes, int64_t host_bytes);
  char* device() const { return device_.get(); }
  char* host() const { return host_.get(); }

  // All work of the lookup has been queued on the stream.
  void End(void* stream) noexcept;

 private:
  struct FreeDevice {
    void operator()(char* memory) const;
  };
  struct FreeHost {
    void operator()(char* memory) const;
  };

  void* last_use_ = nullptr;  // a cudaEvent_t
  std::unique_ptr<char, FreeDevice> device_;
  std::unique_ptr<char, FreeHost> host_;
  int64_t device_bytes_ = 0;
  int64_t host_bytes_ = 0;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_DEVICE_MEMORY_H_
