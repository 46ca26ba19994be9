#include "engine/arena.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace rankhouse::engine {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFirstBlockBytes = 64 * 1024;

thread_local std::unique_ptr<Arena> idle_arena;

}  // namespace

Arena::Arena() {
  if (rh_scratch_create(&scratch_) != RH_OK) throw std::bad_alloc();
}

Arena::~Arena() { rh_scratch_destroy(scratch_); }

void* Arena::TakeBytes(int64_t count, int64_t size) {
  if (count > std::numeric_limits<int64_t>::max() / 4 / size) throw std::bad_alloc();
  const int64_t bytes = (count * size + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || blocks_.back().bytes - used_ < bytes) {
    const int64_t block = std::max({kFirstBlockBytes, bytes, blocks_.empty() ? 0 : 2 * blocks_.back().bytes});
    blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[block + kAlignment]), block});
    used_ = 0;
  }
  std::byte* data = blocks_.back().data.get();
  data += -reinterpret_cast<uintptr_t>(data) % kAlignment;
  void* taken = data + used_;
  used_ += bytes;
  return taken;
}

void Arena::Reset() {
  // The last block is larger than all before it together.
  if (blocks_.size() > 1) blocks_.erase(blocks_.begin(), blocks_.end() - 1);
  used_ = 0;
}

ThreadArena::ThreadArena() : arena_(std::move(idle_arena)) {
  if (arena_ == nullptr) arena_ = std::make_unique<Arena>();
}

ThreadArena::~ThreadArena() {
  arena_->Reset();
  idle_arena = std::move(arena_);
}

}  // namespace rankhouse::engine
