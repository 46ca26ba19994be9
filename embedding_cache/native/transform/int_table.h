// From integers to ids: a hash table in memory of this process.
//
// Vocabularies of integers lie sorted in their files, which is small and the same for all readers, but a search in them
// reads a line of memory for each halving. This table reads one for nearly every search, known value or not.
#ifndef RANKHOUSE_TRANSFORM_INT_TABLE_H_
#define RANKHOUSE_TRANSFORM_INT_TABLE_H_

#include <cstdint>
#include <memory>

namespace rankhouse::transform {

constexpr int64_t kRemoved = -1;  // What stands for an id where a layer removes a value.
constexpr int64_t kMaxId = int64_t{1} << 62;
constexpr int64_t kUntold = -2;  // What stands for an id where nothing is known of a value.

// Changed by one thread; when it changes no more, any thread may read it.
class IntTable {
 public:
  // capacity: the most values that are added.
  explicit IntTable(int64_t capacity);
  IntTable(IntTable&&) = default;
  IntTable& operator=(IntTable&&) = default;

  bool empty() const { return size_ == 0; }

  // Adds a value unless it is there. id: at most kMaxId; a negative one is that of a removed value.
  void Add(int64_t value, int64_t id);

  // Asks for the memory that Add will read.
  void Prefetch(int64_t value) const { __builtin_prefetch(&buckets_[BucketOf(value)], 1); }

  // Looks n values up; an id is kUntold where there is none, kRemoved where it was removed.
  void Find(const int64_t* values, int64_t n, int64_t* ids) const;

 private:
  static constexpr int kSlots = 4;
  // One line of memory, filled from its first slot on. When it is full, its values go on in the next bucket.
  struct alignas(64) Bucket {
    int64_t values[kSlots];
    int64_t marks[kSlots];  // the id, counted from kUntold; 0 is an empty slot
  };
  struct Unmap {
    int64_t bytes;
    void operator()(Bucket* buckets) const;
  };

  int64_t BucketOf(int64_t value) const;
  int64_t After(int64_t bucket) const { return bucket + 1 == num_buckets_ ? 0 : bucket + 1; }
  int64_t MarkOf(int64_t value, int64_t bucket) const;

  int64_t size_ = 0;
  int64_t num_buckets_;
  std::unique_ptr<Bucket[], Unmap> buckets_;
};

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_INT_TABLE_H_
