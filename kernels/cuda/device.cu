#include <cstring>

#include "cuda/device.cuh"

namespace rankhouse {
namespace {

// As much as fits into a kernel's 4 KiB of arguments with room for the others.
struct Packet {
  static constexpr int64_t kWords = 960;
  uint32_t words[kWords];
};

__global__ void Unpack(Packet packet, uint32_t* target, int32_t num_words) {
  for (int32_t i = threadIdx.x; i < num_words; i += kBlockThreads) target[i] = packet.words[i];
}

}  // namespace

void UploadBytes(void* device, const void* host, int64_t bytes, cudaStream_t stream) {
  constexpr int64_t kBytes = sizeof(Packet);
  for (int64_t begin = 0; begin < bytes; begin += kBytes) {
    Packet packet = {};
    const int64_t count = std::min(kBytes, bytes - begin);
    std::memcpy(&packet, static_cast<const char*>(host) + begin, count);
    uint32_t* target = reinterpret_cast<uint32_t*>(static_cast<char*>(device) + begin);
    Launch(Unpack, 1, stream, packet, target, static_cast<int32_t>(DivideUp(count, sizeof(uint32_t))));
  }
}

}  // namespace rankhouse
