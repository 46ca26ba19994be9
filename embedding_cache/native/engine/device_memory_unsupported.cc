// A GPU's memory in a build without CUDA: there is none, and no lookup gets beyond CheckDevice.
#include "core/status.h"
#include "engine/device_memory.h"

namespace rankhouse::engine {
namespace {

[[noreturn]] void ThrowUnsupported() { throw Error(RH_UNSUPPORTED, "this library was built without CUDA"); }

}  // namespace

void CheckDevice(int32_t device) {
  throw Error(RH_UNSUPPORTED, StrCat("'device' is ", device,
                                     ", but this library was built without CUDA: leave the option out, or build it "
                                     "where nvcc and a GPU are, or with -DRANKHOUSE_CUDA=ON (pip install . -C "
                                     "cmake.define.RANKHOUSE_CUDA=ON)"));
}

CurrentDevice::CurrentDevice(int32_t) { ThrowUnsupported(); }
CurrentDevice::~CurrentDevice() = default;

void* ThreadStream() { return nullptr; }

void CopyToDevice(void*, const void*, int64_t, void*) { ThrowUnsupported(); }
void CopyFromDevice(void*, const void*, int64_t, void*) { ThrowUnsupported(); }

DeviceScratch::DeviceScratch() { ThrowUnsupported(); }
DeviceScratch::~DeviceScratch() = default;
bool DeviceScratch::IsIdle() const { return true; }
void DeviceScratch::Begin(int64_t, int64_t) { ThrowUnsupported(); }
void DeviceScratch::End(void*) noexcept {}
void DeviceScratch::FreeDevice::operator()(char*) const {}
void DeviceScratch::FreeHost::operator()(char*) const {}

}  // namespace rankhouse::engine
