// A set-associative cache of rows by 64-bit key, in the host's memory; rankhouse/row_cache.h says what it does.
//
// A set is two lines of the processor's cache (keys; times and counts) and, elsewhere, `kWays` rows. Each set is a
// sequence lock: readers copy a row and keep it only if the set's sequence number did not move meanwhile, so they never
// wait for each other and write nothing but the time of use. One thread at a time writes a set: it makes the number
// odd, writes, and makes it even again.
//
// Why no torn row gets out. A row is stored in words, each an atomic that is written with release and read with
// acquire. A reader that gets one word of a newer row therefore also sees the odd number that its writer stored before
// it, and as its own second look at the number comes after its words, it does not find the number that it began with.
// The same holds for keys. A reader that is disturbed again and again says that the key is missing, which is always
// right. A thread that stops for long inside a write delays only the writers of that set.
#ifndef RANKHOUSE_CACHE_ROW_CACHE_H_
#define RANKHOUSE_CACHE_ROW_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cache/replacement.h"

namespace rankhouse::cache {

struct CacheStats {
  int64_t hits;
  int64_t misses;
  int64_t inserted;  // rows that were new
  int64_t evicted;
  int64_t num_rows;  // that it has now
  int64_t capacity_rows;
  int64_t bytes;  // memory taken, from the beginning on
};

// Any thread may call everything but the destructor at any time.
class RowCache {
 public:
  // Keys and the rest are a line each. At Zipf 1.05 over 5M rows, room for 2 % and 10 %, 16 or 32 ways find at most 0.5
  // points more, or fewer, and take up to twice as long.
  static constexpr int kWays = 8;

  // Takes at most capacity_bytes, keys and counts included; with room for no row all keys are missing. Throws Error
  // where an argument is out of its range or the system has no memory.
  RowCache(int64_t capacity_bytes, int64_t row_bytes, Policy policy);
  ~RowCache();
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  int64_t row_bytes() const { return row_bytes_; }

  // Copies the rows that are here to out + i * row_bytes, and writes the positions of the other keys, increasing, to
  // missing [n]. Returns how many they are. n < 2^31. The rows of missing keys are left unspecified.
  int64_t Find(const uint64_t* keys, int64_t n, std::byte* out, int32_t* missing);

  // Puts rows [n * row_bytes] in, one after the other; the row of a key that is here is replaced.
  void Insert(const uint64_t* keys, int64_t n, const std::byte* rows);

  CacheStats stats() const;

 private:
  using Word = std::atomic<uint64_t>;
  struct Set;
  struct Probe;
  struct Changes {
    int64_t inserted = 0;
    int64_t evicted = 0;
  };

  void Locate(uint64_t key, Probe* probe) const;
  bool Read(uint64_t key, Probe probe, uint32_t now, std::byte* out) const;
  void InsertOne(uint64_t key, uint32_t now, const std::byte* row, Changes* changes);
  int WayFor(Set* set, uint64_t key, uint32_t now, Changes* changes) const;
  Word* RowOf(const Set* set, int way) const;
  void CopyOut(const Word* row, std::byte* out) const;
  void CopyIn(const std::byte* row, Word* words) const;
  void PrefetchRow(const Word* row) const;

  const int64_t row_bytes_;
  const int64_t words_per_row_;
  const Policy policy_;
  int64_t num_sets_ = 0;
  int64_t bytes_ = 0;
  Set* sets_ = nullptr;   // [num_sets_]
  Word* rows_ = nullptr;  // [num_sets_, kWays, words_per_row_], behind the sets in the same memory

  // Written once a call, apart from what every key reads.
  alignas(64) std::atomic<uint32_t> clock_{0};
  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
  std::atomic<int64_t> inserted_{0};
  std::atomic<int64_t> evicted_{0};
};

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_ROW_CACHE_H_
