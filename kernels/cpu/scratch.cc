#include "cpu/scratch.h"

#include <algorithm>
#include <cstdlib>

#include "core/status.h"
#include "cpu/memory.h"

namespace {

constexpr int64_t kAlignment = 64;
// Larger blocks come straight from the system, in huge pages.
constexpr int64_t kMappedBytes = int64_t{4} << 20;
constexpr int64_t kMinBlockBytes = int64_t{64} << 10;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void rh_scratch::AddBlock(int64_t bytes) {
  blocks.reserve(blocks.size() + 1);
  void* data = bytes >= kMappedBytes ? rankhouse::MapMemory(bytes) : std::aligned_alloc(kAlignment, bytes);
  if (data == nullptr) throw std::bad_alloc();
  blocks.push_back({static_cast<char*>(data), bytes});
}

void rh_scratch::Free() noexcept {
  for (const Block& block : blocks) {
    if (block.bytes >= kMappedBytes) {
      rankhouse::UnmapMemory(block.data, block.bytes);
    } else {
      std::free(block.data);
    }
  }
  blocks.clear();
}

namespace rankhouse {

Scratch::Scratch(const rh_executor* executor) {
  const bool given = executor != nullptr && executor->scratch != nullptr;
  scratch_ = given ? executor->scratch : &own_;
  Require(!scratch_->in_use.exchange(true, std::memory_order_acquire),
          "the executor's scratch is in use by another call: give each call that runs at the same time one of its own");
  if (scratch_->blocks.size() > 1) {
    int64_t bytes = 0;
    for (const rh_scratch::Block& block : scratch_->blocks) bytes += block.bytes;
    scratch_->Free();
    try {
      scratch_->AddBlock(bytes);
    } catch (const std::bad_alloc&) {
      scratch_->in_use.store(false, std::memory_order_release);
      throw;
    }
  }
}

Scratch::~Scratch() { scratch_->in_use.store(false, std::memory_order_release); }

void* Scratch::TakeBytes(int64_t bytes) {
  bytes = std::max(kAlignment, RoundUp(bytes));
  if (scratch_->blocks.empty() || scratch_->blocks.back().bytes - used_ < bytes) {
    scratch_->AddBlock(std::max(bytes, kMinBlockBytes));
    used_ = 0;
  }
  void* data = scratch_->blocks.back().data + used_;
  used_ += bytes;
  return data;
}

}  // namespace rankhouse

int rh_scratch_create(rh_scratch** scratch) {
  return rankhouse::Guard([&] {
    rankhouse::Require(scratch != nullptr, "scratch is NULL");
    *scratch = new rh_scratch;
  });
}

void rh_scratch_destroy(rh_scratch* scratch) { delete scratch; }
