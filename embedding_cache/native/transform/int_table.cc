#include "transform/int_table.h"

#include <algorithm>
#include <new>

#include "rankhouse/kernels.h"

namespace rankhouse::transform {
namespace {

constexpr int64_t kSearches = 16;  // As many wait for memory together.

}  // namespace

void IntTable::Unmap::operator()(Bucket* buckets) const { rh_free(buckets, bytes); }

// Two thirds of the slots are filled at most, so that few buckets are full, and searches end.
IntTable::IntTable(int64_t capacity) : num_buckets_(capacity * 3 / (2 * kSlots) + 1) {
  const int64_t bytes = num_buckets_ * static_cast<int64_t>(sizeof(Bucket));
  void* memory = nullptr;
  if (rh_allocate(bytes, &memory) != RH_OK) throw std::bad_alloc();
  buckets_ = {static_cast<Bucket*>(memory), Unmap{bytes}};
}

int64_t IntTable::BucketOf(int64_t value) const {
  uint64_t hash = static_cast<uint64_t>(value) * 0x9E3779B97F4A7C15;
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93;
  return static_cast<int64_t>(static_cast<unsigned __int128>(hash) * static_cast<uint64_t>(num_buckets_) >> 64);
}

void IntTable::Add(int64_t value, int64_t id) {
  int64_t bucket = BucketOf(value);
  for (int slot = 0;; ++slot) {
    if (slot == kSlots) {
      bucket = After(bucket);
      slot = 0;
    }
    Bucket& own = buckets_[bucket];
    if (own.marks[slot] != 0 && own.values[slot] == value) return;
    if (own.marks[slot] != 0) continue;
    own.values[slot] = value;
    own.marks[slot] = std::max(id, kRemoved) - kUntold;
    ++size_;
    return;
  }
}

int64_t IntTable::MarkOf(int64_t value, int64_t bucket) const {
  for (;; bucket = After(bucket)) {
    const Bucket& own = buckets_[bucket];
    int64_t mark = 0;
    // Each value is there once; empty slots, whose value is 0, have the mark 0.
    for (int slot = 0; slot < kSlots; ++slot) mark |= own.values[slot] == value ? own.marks[slot] : 0;
    if (mark != 0 || own.marks[kSlots - 1] == 0) return mark;
  }
}

void IntTable::Find(const int64_t* values, int64_t n, int64_t* ids) const {
  for (int64_t begin = 0; begin < n; begin += kSearches) {
    const int64_t count = std::min(kSearches, n - begin);
    int64_t buckets[kSearches];
    for (int64_t i = 0; i < count; ++i) {
      buckets[i] = BucketOf(values[begin + i]);
      __builtin_prefetch(&buckets_[buckets[i]]);
    }
    for (int64_t i = 0; i < count; ++i) ids[begin + i] = MarkOf(values[begin + i], buckets[i]) + kUntold;
  }
}

}  // namespace rankhouse::transform
