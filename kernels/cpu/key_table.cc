#include "cpu/key_table.h"

#include <algorithm>
#include <new>

namespace rankhouse {
namespace {

constexpr int64_t kPrefetchSlots = 64;
constexpr int64_t kMaxKeys = int64_t{1} << 56;  // beyond every memory, and room for computing sizes

}  // namespace

KeyTable::KeyTable(int64_t num_keys) {
  if (num_keys > kMaxKeys) throw std::bad_alloc();
  int bits = 1;
  while ((int64_t{1} << bits) * kBucketSlots / 4 * 3 < num_keys) ++bits;
  num_buckets_ = int64_t{1} << bits;
  shift_ = 64 - bits;
  // Memory from the system comes zeroed: every slot is free.
  buckets_ = static_cast<Bucket*>(MapMemory(num_buckets_ * static_cast<int64_t>(sizeof(Bucket))));
  statistics_ = static_cast<KeyStatistics*>(MapMemory(num_slots() * static_cast<int64_t>(sizeof(KeyStatistics))));
  if (buckets_ == nullptr || statistics_ == nullptr) {
    KeyTable::~KeyTable();
    throw std::bad_alloc();
  }
}

KeyTable::~KeyTable() {
  if (buckets_ != nullptr) UnmapMemory(buckets_, num_buckets_ * static_cast<int64_t>(sizeof(Bucket)));
  if (statistics_ != nullptr) UnmapMemory(statistics_, num_slots() * static_cast<int64_t>(sizeof(KeyStatistics)));
}

void KeyTable::Swap(KeyTable& other) noexcept {
  std::swap(buckets_, other.buckets_);
  std::swap(statistics_, other.statistics_);
  std::swap(num_buckets_, other.num_buckets_);
  std::swap(shift_, other.shift_);
  std::swap(size_, other.size_);
}

bool KeyTable::Reserve(int64_t num_keys) {
  if (num_keys <= Capacity()) return false;
  KeyTable larger(num_keys);
  for (int64_t slot = 0; slot < num_slots(); ++slot) {
    if (slot + kPrefetchSlots < num_slots()) larger.Prefetch(key(slot + kPrefetchSlots));
    if (tag(slot) != kFreeSlot) larger.Insert(key(slot), tag(slot), statistics(slot));
  }
  Swap(larger);
  return true;
}

int64_t KeyTable::FreeSlot(int64_t bucket) const {
  for (int64_t i = 0; i < kBucketSlots; ++i) {
    if (buckets_[bucket].tags[i] == kFreeSlot) return bucket * kBucketSlots + i;
  }
  return -1;
}

int64_t KeyTable::Find(int64_t key) const {
  for (int64_t b = Home(key);; b = Next(b)) {
    bool is_full = true;
    for (int64_t i = 0; i < kBucketSlots; ++i) {
      if (buckets_[b].tags[i] == kFreeSlot) {
        is_full = false;
      } else if (buckets_[b].keys[i] == key) {
        return b * kBucketSlots + i;
      }
    }
    if (!is_full) return -1;
  }
}

int64_t KeyTable::Insert(int64_t key, int64_t tag, KeyStatistics statistics) noexcept {
  int64_t b = Home(key);
  int64_t slot;
  while ((slot = FreeSlot(b)) < 0) b = Next(b);
  buckets_[b].keys[slot % kBucketSlots] = key;
  buckets_[b].tags[slot % kBucketSlots] = tag;
  statistics_[slot] = statistics;
  ++size_;
  return slot;
}

void KeyTable::Erase(int64_t slot) noexcept {
  int64_t hole = slot;
  bool was_full = FreeSlot(hole / kBucketSlots) < 0;
  tag(hole) = kFreeSlot;
  --size_;
  // Only where a bucket was full can keys have gone past it.
  for (int64_t b = Next(hole / kBucketSlots); was_full; b = Next(b)) {
    was_full = FreeSlot(b) < 0;
    const int64_t from_hole = (b - hole / kBucketSlots) & (num_buckets_ - 1);
    for (int64_t i = 0; i < kBucketSlots; ++i) {
      const int64_t next = b * kBucketSlots + i;
      // A key may move to the hole if its home does not lie after it.
      if (tag(next) == kFreeSlot || Distance(b, key(next)) < from_hole) continue;
      buckets_[hole / kBucketSlots].keys[hole % kBucketSlots] = key(next);
      tag(hole) = tag(next);
      statistics(hole) = statistics(next);
      tag(next) = kFreeSlot;
      hole = next;
      break;
    }
  }
}

}  // namespace rankhouse
