// The hash table of a vocabulary: keys of the whole int64 range, each with a tag and statistics.
//
// Open addressing over buckets of four slots. A bucket's keys and tags fill one cache line, so a lookup mostly touches
// one line, and compares four keys at once. A key lies in the first bucket that had room, counted from its home. So:
//
//   Between a key's home and its bucket, every bucket is full.
//
// Erase keeps that by moving later keys forward; there are no tombstones. Whether a slot is used says its tag, not its
// key: no key is reserved.
#ifndef RANKHOUSE_CPU_KEY_TABLE_H_
#define RANKHOUSE_CPU_KEY_TABLE_H_

#include <cstdint>
#include <utility>

#include "core/hash.h"
#include "cpu/memory.h"
#include "cpu/simd.h"

namespace rankhouse {

// What a slot's tag says: kFreeSlot, kCandidate, or 1 + (id - first_id) of a key with an id.
constexpr int64_t kFreeSlot = 0;
constexpr int64_t kCandidate = -1;

struct KeyStatistics {
  int64_t count;
  int64_t last_step;
};

class KeyTable {
 public:
  static constexpr int64_t kBucketSlots = 4;

  explicit KeyTable(int64_t num_keys = 0);  // with room for num_keys; throws std::bad_alloc
  ~KeyTable();
  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;

  void Swap(KeyTable& other) noexcept;

  // Makes room for num_keys in all. Moves slots if it returns true. Throws std::bad_alloc, and has changed nothing
  // then.
  bool Reserve(int64_t num_keys);

  // The slot of a key, or -1.
  int64_t Find(int64_t key) const;

  // Adds a key that is not there; there is room. Returns its slot.
  int64_t Insert(int64_t key, int64_t tag, KeyStatistics statistics) noexcept;

  // Removes what a slot holds. Moves other slots.
  void Erase(int64_t slot) noexcept;

  int64_t size() const { return size_; }
  int64_t num_slots() const { return num_buckets_ * kBucketSlots; }
  int64_t key(int64_t slot) const { return buckets_[slot / kBucketSlots].keys[slot % kBucketSlots]; }
  int64_t& tag(int64_t slot) { return buckets_[slot / kBucketSlots].tags[slot % kBucketSlots]; }
  int64_t tag(int64_t slot) const { return buckets_[slot / kBucketSlots].tags[slot % kBucketSlots]; }
  KeyStatistics& statistics(int64_t slot) { return statistics_[slot]; }
  const KeyStatistics& statistics(int64_t slot) const { return statistics_[slot]; }

  // Starts loading the bucket where a key is most likely.
  RH_INLINE void Prefetch(int64_t key) const { __builtin_prefetch(buckets_ + Home(key)); }
  void PrefetchStatistics(int64_t slot) const { __builtin_prefetch(statistics_ + slot); }

  // Returns the key's tag, or kFreeSlot where it is not there.
  RH_INLINE int64_t FindTag(int64_t key) const {
    for (int64_t b = Home(key);; b = Next(b)) {
      const Bucket& bucket = buckets_[b];
      int64_t tag = 0;
      bool is_full = true;
      // Without branches: a processor guesses wrong half of the time which of four slots it is.
      for (int64_t i = 0; i < kBucketSlots; ++i) {
        tag |= bucket.keys[i] == key ? bucket.tags[i] : 0;
        is_full &= bucket.tags[i] != kFreeSlot;
      }
      if (tag != 0 || !is_full) return tag;
    }
  }

 private:
  struct alignas(64) Bucket {
    int64_t keys[kBucketSlots];
    int64_t tags[kBucketSlots];
  };

  RH_INLINE int64_t Home(int64_t key) const { return static_cast<int64_t>(HashKey(key) >> shift_); }
  RH_INLINE int64_t Next(int64_t bucket) const { return (bucket + 1) & (num_buckets_ - 1); }
  // How many buckets after its home a key in `bucket` lies.
  int64_t Distance(int64_t bucket, int64_t key) const { return (bucket - Home(key)) & (num_buckets_ - 1); }
  int64_t FreeSlot(int64_t bucket) const;  // -1 where it is full
  int64_t Capacity() const { return num_slots() / 4 * 3; }

  Bucket* buckets_ = nullptr;            // [num_buckets_], a power of two
  KeyStatistics* statistics_ = nullptr;  // [num_slots()]
  int64_t num_buckets_ = 0;
  int shift_ = 0;  // that leaves log2(num_buckets_) bits of a hash
  int64_t size_ = 0;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_KEY_TABLE_H_
