#include "cache/row_cache.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <type_traits>

#include "cache/capacity.h"
#include "core/status.h"

namespace rankhouse::cache {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kWord = sizeof(uint64_t);

// Keys whose memory is on its way at one time: enough to cover an access of 100 ns, few enough to stay in the nearest
// cache until they are used.
constexpr int64_t kBatch = 32;

// A reader that met a writer so often takes the key as missing.
constexpr int kTries = 8;

// The processor's own prefetcher follows long rows by itself.
constexpr int64_t kPrefetchedLines = 8;

}  // namespace

// All zeros is an empty set.
struct alignas(kLine) RowCache::Set {
  Word keys[kWays];
  std::atomic<uint32_t> sequence;  // odd while a thread writes
  std::atomic<uint32_t> num_rows;  // the ways from 0 on that hold rows
  uint32_t evictions;              // only the thread that writes looks at it
  std::atomic<uint32_t> last_used[kWays];
  std::atomic<uint8_t> uses[kWays];

  // Waits until no other thread writes here, and keeps them out until Unlock. Returns the sequence number, odd.
  uint32_t Lock() {
    for (int64_t turn = 1;; ++turn) {
      uint32_t current = sequence.load(std::memory_order_relaxed);
      if (current % 2 == 0 &&
          sequence.compare_exchange_weak(current, current + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
        return current + 1;
      }
      if (turn % 64 == 0) std::this_thread::yield();  // its writer may wait for this processor
    }
  }
  void Unlock(uint32_t locked) { sequence.store(locked + 1, std::memory_order_release); }

  // Readers that use a row at once may count as one.
  void Touch(int way, uint32_t now) {
    const uint32_t count = uses[way].load(std::memory_order_relaxed);
    if (count < kMostUses) uses[way].store(static_cast<uint8_t>(count + 1), std::memory_order_relaxed);
    last_used[way].store(now, std::memory_order_relaxed);
  }

  // Returns the way of the row that goes. Only in a full set that this thread has locked.
  int MakeRoom(Policy policy, uint32_t now) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    if (++evictions % (kEvictionsPerWay * kWays) == 0) {
      for (auto& count : uses) count.store(count.load(kRelaxed) / 2, kRelaxed);
    }
    int chosen = 0;
    uint64_t highest = 0;
    for (int way = 0; way < kWays; ++way) {
      const uint64_t dispensable = Dispensability(policy, uses[way].load(kRelaxed), last_used[way].load(kRelaxed), now);
      if (dispensable > highest) chosen = way, highest = dispensable;
    }
    return chosen;
  }
};

// Where a key was when its set had this sequence number.
struct RowCache::Probe {
  Set* set;
  uint32_t sequence;
  int way;  // -1: it was not there
};

RowCache::RowCache(int64_t capacity_bytes, int64_t row_bytes, Policy policy)
    : row_bytes_(row_bytes), words_per_row_((row_bytes + kWord - 1) / kWord), policy_(policy) {
  CheckOptions(capacity_bytes, row_bytes, policy);
  static_assert(sizeof(Set) == 2 * kLine && sizeof(Word) == kWord && Word::is_always_lock_free);
  const int64_t set_bytes = static_cast<int64_t>(sizeof(Set)) + kWays * words_per_row_ * kWord;
  num_sets_ = NumSets(capacity_bytes, 0, set_bytes);
  bytes_ = num_sets_ * set_bytes;
  if (num_sets_ == 0) return;
  void* memory = nullptr;
  const int status = rh_allocate(bytes_, &memory);
  if (status != RH_OK) throw Error(status, StrCat("a cache of ", capacity_bytes, " bytes: ", rh_last_error()));
  // The memory is zeros and stays so: these constructors do nothing, and touch no page.
  static_assert(std::is_trivially_default_constructible_v<Set> && std::is_trivially_default_constructible_v<Word>);
  sets_ = ::new (memory) Set[num_sets_];
  rows_ = ::new (static_cast<void*>(sets_ + num_sets_)) Word[num_sets_ * kWays * words_per_row_];
}

RowCache::~RowCache() { rh_free(sets_, bytes_); }

RowCache::Word* RowCache::RowOf(const Set* set, int way) const {
  return rows_ + ((set - sets_) * kWays + way) * words_per_row_;
}

void RowCache::PrefetchRow(const Word* row) const {
  const char* first = reinterpret_cast<const char*>(row);
  const int64_t bytes = std::min(words_per_row_ * kWord, kPrefetchedLines * kLine);
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(first + at);
  __builtin_prefetch(first + bytes - 1);  // a row may begin in the middle of a line
}

void RowCache::CopyOut(const Word* row, std::byte* out) const {
  const int64_t whole = row_bytes_ / kWord;
  for (int64_t i = 0; i < whole; ++i) {
    const uint64_t word = row[i].load(std::memory_order_acquire);
    std::memcpy(out + i * kWord, &word, kWord);
  }
  if (whole == words_per_row_) return;
  const uint64_t last = row[whole].load(std::memory_order_acquire);
  std::memcpy(out + whole * kWord, &last, static_cast<size_t>(row_bytes_ % kWord));
}

void RowCache::CopyIn(const std::byte* row, Word* words) const {
  const int64_t whole = row_bytes_ / kWord;
  for (int64_t i = 0; i < whole; ++i) {
    uint64_t word;
    std::memcpy(&word, row + i * kWord, kWord);
    words[i].store(word, std::memory_order_release);
  }
  if (whole == words_per_row_) return;
  uint64_t last = 0;
  std::memcpy(&last, row + whole * kWord, static_cast<size_t>(row_bytes_ % kWord));
  words[whole].store(last, std::memory_order_release);
}

void RowCache::Locate(uint64_t key, Probe* probe) const {
  const Set& set = *probe->set;
  probe->sequence = set.sequence.load(std::memory_order_acquire);
  probe->way = -1;
  const int num_rows = static_cast<int>(set.num_rows.load(std::memory_order_acquire));
  for (int way = 0; way < num_rows; ++way) {
    if (set.keys[way].load(std::memory_order_acquire) == key) probe->way = way;
  }
}

// Copies the row that was located, if nobody has written since.
bool RowCache::Read(uint64_t key, Probe probe, uint32_t now, std::byte* out) const {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    if (probe.sequence % 2 == 0) {
      if (probe.way >= 0) CopyOut(RowOf(probe.set, probe.way), out);
      if (probe.set->sequence.load(std::memory_order_relaxed) == probe.sequence) {
        if (probe.way >= 0) probe.set->Touch(probe.way, now);
        return probe.way >= 0;
      }
    }
    Locate(key, &probe);
  }
  return false;
}

// In three steps, so that the memory of many keys is on its way at once: the sets, then the rows, then the copies.
int64_t RowCache::Find(const uint64_t* keys, int64_t n, std::byte* out, int32_t* missing) {
  const uint32_t now = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  int64_t num_missing = 0;
  Probe probes[kBatch];
  for (int64_t begin = 0; begin < n; begin += kBatch) {
    const int64_t count = std::min(kBatch, n - begin);
    if (num_sets_ == 0) {
      for (int64_t i = 0; i < count; ++i) missing[num_missing++] = static_cast<int32_t>(begin + i);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      probes[i].set = sets_ + SetOf(keys[begin + i], num_sets_);
      __builtin_prefetch(probes[i].set->keys);
      __builtin_prefetch(&probes[i].set->sequence);
    }
    for (int64_t i = 0; i < count; ++i) {
      Locate(keys[begin + i], &probes[i]);
      if (probes[i].way >= 0) PrefetchRow(RowOf(probes[i].set, probes[i].way));
    }
    for (int64_t i = 0; i < count; ++i) {
      if (Read(keys[begin + i], probes[i], now, out + (begin + i) * row_bytes_)) continue;
      missing[num_missing++] = static_cast<int32_t>(begin + i);
    }
  }
  hits_.fetch_add(n - num_missing, std::memory_order_relaxed);
  misses_.fetch_add(num_missing, std::memory_order_relaxed);
  return num_missing;
}

// The way that a key has in a set that this thread writes: its own, a free one, or that of the row that makes way.
int RowCache::WayFor(Set* set, uint64_t key, uint32_t now, Changes* changes) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const int num_rows = static_cast<int>(set->num_rows.load(kRelaxed));
  for (int way = 0; way < num_rows; ++way) {
    if (set->keys[way].load(kRelaxed) == key) return way;
  }
  ++changes->inserted;
  const bool full = num_rows == kWays;
  const int way = full ? set->MakeRoom(policy_, now) : num_rows;
  changes->evicted += full;
  set->keys[way].store(key, std::memory_order_release);
  set->uses[way].store(0, kRelaxed);
  if (!full) set->num_rows.store(num_rows + 1, std::memory_order_release);
  return way;
}

void RowCache::InsertOne(uint64_t key, uint32_t now, const std::byte* row, Changes* changes) {
  Set* set = sets_ + SetOf(key, num_sets_);
  const uint32_t locked = set->Lock();
  const int way = WayFor(set, key, now, changes);
  CopyIn(row, RowOf(set, way));
  set->Touch(way, now);
  set->Unlock(locked);
}

void RowCache::Insert(const uint64_t* keys, int64_t n, const std::byte* rows) {
  if (num_sets_ == 0) return;
  const uint32_t now = clock_.fetch_add(1, std::memory_order_relaxed) + 1;
  Changes changes;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kBatch < n) {
      const Set* ahead = sets_ + SetOf(keys[i + kBatch], num_sets_);
      __builtin_prefetch(ahead->keys, 1);
      __builtin_prefetch(&ahead->sequence, 1);
    }
    InsertOne(keys[i], now, rows + i * row_bytes_, &changes);
  }
  inserted_.fetch_add(changes.inserted, std::memory_order_relaxed);
  evicted_.fetch_add(changes.evicted, std::memory_order_relaxed);
}

CacheStats RowCache::stats() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const int64_t inserted = inserted_.load(kRelaxed);
  const int64_t evicted = evicted_.load(kRelaxed);
  const int64_t capacity = num_sets_ * kWays;
  // Calls that still run have not counted all that they did.
  const int64_t num_rows = std::clamp(inserted - evicted, int64_t{0}, capacity);
  return {hits_.load(kRelaxed), misses_.load(kRelaxed), inserted, evicted, num_rows, capacity, bytes_};
}

}  // namespace rankhouse::cache
