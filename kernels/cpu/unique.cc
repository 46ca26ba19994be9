// Unique keys on the CPU, in one of two ways.
//
// Where a key, less the smallest one, and its position fit into 64 bits together (ids of tables always do), these
// numbers are radix-sorted; runs of equal keys then lie side by side. Bytes moved: 24 per key and pass of 11 bits, and
// 24 per key for the results.
//
// Keys of a wider range are dealt out by their hashes first, and duplicates found in a small hash table for each share,
// so that only the unique keys need the many passes of a wide sort. Bytes moved: about 80 per key, 48 per unique key
// and pass.
//
// Either way the result is defined by the keys alone, so threads cannot change it.
#include "cpu/unique.h"

#include <algorithm>
#include <limits>

#include "core/hash.h"
#include "core/sort_key.h"
#include "core/status.h"
#include "cpu/digit_pass.h"
#include "cpu/simd.h"

namespace rankhouse {
namespace {

constexpr int64_t kFewKeys = 1024;  // below, comparing costs less than clearing and adding up counters
constexpr int64_t kMinKeysPerChunk = 16 * 1024;

struct Item {
  uint64_t key;  // less the smallest one
  uint64_t position;

  bool operator<(const Item& other) const { return key < other.key; }
};

// What the steps below share.
struct Call {
  const int64_t* keys;
  const UniqueOutputs& out;
  const rh_executor* executor;
  Scratch* scratch;
  Chunks chunks;
  int64_t* places;  // [chunks, kMaxPassDigits]
  uint64_t min;     // the smallest key
  int key_bits;     // that hold every key less min

  uint64_t Offset(int64_t n) const { return static_cast<uint64_t>(keys[n]) - min; }
};

Chunks ChunksOf(int64_t total, const rh_executor* executor) {
  const int64_t given = executor != nullptr ? executor->num_threads : 0;
  const int64_t most = given > 0 ? given : NumProcessors();
  return {total, std::clamp<int64_t>(total / kMinKeysPerChunk, 1, most)};
}

// Sets min and key_bits.
void FindRange(Call* call) {
  int64_t* smallest = call->places;
  int64_t* largest = call->places + call->chunks.count;
  ForEachChunk(call->executor, call->chunks, 1, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t low = call->keys[begin];
    int64_t high = low;
    for (int64_t n = begin; n < end; ++n) {
      low = std::min(low, call->keys[n]);
      high = std::max(high, call->keys[n]);
    }
    smallest[chunk] = low;
    largest[chunk] = high;
  });
  const int64_t min = *std::min_element(smallest, smallest + call->chunks.count);
  const int64_t max = *std::max_element(largest, largest + call->chunks.count);
  call->min = static_cast<uint64_t>(min);
  const uint64_t range = static_cast<uint64_t>(max) - call->min;
  call->key_bits = range == 0 ? 0 : 64 - __builtin_clzll(range);
}

// Sorts items by the lowest `num_bits` of what `bits_of` gives, in passes from the lowest. first(n) gives item n before
// the first pass, which writes to `items`. Returns where the result is.
template <typename First, typename BitsOf, typename T>
T* RadixSortItems(const Call& call, const Chunks& chunks, int num_bits, First first, BitsOf bits_of, T* items,
                  T* spare) {
  const int num_passes = std::max(1, (num_bits + kMaxPassBits - 1) / kMaxPassBits);
  const int pass_bits = std::max(1, (num_bits + num_passes - 1) / num_passes);
  const uint64_t mask = (uint64_t{1} << pass_bits) - 1;
  for (int pass = 0; pass < num_passes; ++pass) {
    const int shift = pass * pass_bits;
    const auto digit = [=](const T& item) { return bits_of(item) >> shift & mask; };
    if (pass == 0) {
      SortByDigit(call.executor, chunks, first, digit, pass_bits, false, call.places, items);
    } else {
      const auto item = [items](int64_t n) { return items[n]; };
      if (SortByDigit(call.executor, chunks, item, digit, pass_bits, true, call.places, spare)) std::swap(items, spare);
    }
  }
  return items;
}

// Writes the results from sorted items: key_of(n) and position_of(n) of the n-th. starts [N] is room.
template <typename KeyOf, typename PositionOf>
int64_t WriteRuns(const Call& call, KeyOf key_of, PositionOf position_of, int64_t* starts) {
  const auto begins_run = [key_of](int64_t n) { return n == 0 || key_of(n) != key_of(n - 1); };
  int64_t* ranks = call.places;  // of each chunk's first run
  ForEachChunk(call.executor, call.chunks, 2, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t num_runs = 0;
    for (int64_t n = begin; n < end; ++n) num_runs += begins_run(n);
    ranks[chunk] = num_runs;
  });
  int64_t num_unique = 0;
  for (int64_t chunk = 0; chunk < call.chunks.count; ++chunk) {
    const int64_t num_runs = ranks[chunk];
    ranks[chunk] = num_unique;
    num_unique += num_runs;
  }
  ForEachChunk(call.executor, call.chunks, 6, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t rank = ranks[chunk] - 1;
    for (int64_t n = begin; n < end; ++n) {
      if (begins_run(n)) {
        ++rank;
        call.out.unique[rank] = static_cast<int64_t>(key_of(n) + call.min);
        starts[rank] = n;
      }
      if (call.out.inverse != nullptr) call.out.inverse[position_of(n)] = rank;
    }
  });
  if (call.out.counts != nullptr) {
    ParallelFor(call.executor, num_unique, 2, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        call.out.counts[u] = (u + 1 < num_unique ? starts[u + 1] : call.chunks.total) - starts[u];
      }
    });
  }
  return num_unique;
}

int64_t UniqueOfNarrowRange(const Call& call) {
  const int64_t num_keys = call.chunks.total;
  const int position_bits = BitWidth(num_keys);
  uint64_t* items = call.scratch->Take<uint64_t>(num_keys);
  uint64_t* spare = call.scratch->Take<uint64_t>(num_keys);
  const auto pack = [&](int64_t n) { return call.Offset(n) << position_bits | static_cast<uint64_t>(n); };
  if (num_keys < kFewKeys) {
    for (int64_t n = 0; n < num_keys; ++n) items[n] = pack(n);
    std::sort(items, items + num_keys);
  } else {
    const auto bits_of = [position_bits](uint64_t item) { return item >> position_bits; };
    uint64_t* sorted = RadixSortItems(call, call.chunks, call.key_bits, pack, bits_of, items, spare);
    if (sorted != items) std::swap(items, spare);
  }
  const uint64_t position_mask = (uint64_t{1} << position_bits) - 1;
  return WriteRuns(
      call, [=](int64_t n) { return items[n] >> position_bits; }, [=](int64_t n) { return items[n] & position_mask; },
      reinterpret_cast<int64_t*>(spare));
}

int64_t UniqueOfFewWide(const Call& call) {
  const int64_t num_keys = call.chunks.total;
  Item* items = call.scratch->Take<Item>(num_keys);
  for (int64_t n = 0; n < num_keys; ++n) items[n] = {call.Offset(n), static_cast<uint64_t>(n)};
  std::sort(items, items + num_keys);
  return WriteRuns(
      call, [=](int64_t n) { return items[n].key; }, [=](int64_t n) { return items[n].position; },
      call.scratch->Take<int64_t>(num_keys));
}

constexpr int kShareBits = kMaxPassBits;
constexpr int64_t kNumShares = int64_t{1} << kShareBits;

// Finds the unique keys among items [num_items] and moves them to the front. `table` is room for 4 * num_items. A
// unique key's slot is its place in items, counted from `first_slot`; it becomes its Item's position.
int64_t FindDuplicates(Item* items, int64_t num_items, int64_t first_slot, uint32_t* table, int64_t* slots,
                       int64_t* counts) {
  if (num_items == 0) return 0;
  const int table_bits = BitWidth(2 * num_items);
  const uint64_t mask = (uint64_t{1} << table_bits) - 1;
  std::fill_n(table, mask + 1, 0);  // 0 is free, else 1 + a place in items
  int64_t num_unique = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    const Item item = items[i];
    uint64_t probe = HashKey(static_cast<int64_t>(item.key)) & mask;
    while (table[probe] != 0 && items[table[probe] - 1].key != item.key) probe = (probe + 1) & mask;
    if (table[probe] == 0) {
      items[num_unique] = {item.key, static_cast<uint64_t>(first_slot + num_unique)};
      if (counts != nullptr) counts[num_unique] = 0;
      table[probe] = static_cast<uint32_t>(++num_unique);
    }
    const int64_t place = table[probe] - 1;
    if (slots != nullptr) slots[item.position] = first_slot + place;
    if (counts != nullptr) ++counts[place];
  }
  return num_unique;
}

// Sorts the num_unique Items in `from`, which differ in their keys: by as many of the highest bits as tell most of them
// apart, and what these leave equal by comparing. Returns where the result is.
const Item* SortUniqueItems(const Call& call, int64_t num_unique, Item* spare, Item* from) {
  const int num_bits = std::min(call.key_bits, BitWidth(num_unique) + 3);
  const int shift = call.key_bits - num_bits;
  const auto high_bits = [shift](const Item& item) { return item.key >> shift; };
  const Chunks chunks = ChunksOf(num_unique, call.executor);
  Item* sorted = RadixSortItems(call, chunks, num_bits, [from](int64_t n) { return from[n]; }, high_bits, spare, from);
  for (int64_t begin = 0, end = 0; begin < num_unique; begin = end) {
    for (end = begin + 1; end < num_unique && high_bits(sorted[end]) == high_bits(sorted[begin]);) ++end;
    if (end - begin > 1) std::sort(sorted + begin, sorted + end);
  }
  return sorted;
}

int64_t UniqueOfWideRange(const Call& call) {
  const int64_t num_keys = call.chunks.total;
  Item* items = call.scratch->Take<Item>(num_keys);
  Item* spare = call.scratch->Take<Item>(num_keys);
  int64_t* slot_counts = call.out.counts != nullptr ? call.scratch->Take<int64_t>(num_keys) : nullptr;
  int64_t* ranks = call.scratch->Take<int64_t>(num_keys);  // of each slot
  int64_t* share_unique = call.scratch->Take<int64_t>(kNumShares);
  int64_t* ends = call.scratch->Take<int64_t>(kNumShares);
  const auto share = [](const Item& item) { return HashKey(static_cast<int64_t>(item.key)) >> (64 - kShareBits); };
  SortByDigit(
      call.executor, call.chunks, [&](int64_t n) { return Item{call.Offset(n), static_cast<uint64_t>(n)}; }, share,
      kShareBits, false, call.places, items);
  std::copy_n(call.places + (call.chunks.count - 1) * kNumShares, kNumShares, ends);

  ParallelFor(call.executor, kNumShares, 15 * (num_keys / kNumShares + 1), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s == 0 ? 0 : ends[s - 1];
      share_unique[s] =
          FindDuplicates(items + first, ends[s] - first, first, reinterpret_cast<uint32_t*>(spare + first),
                         call.out.inverse, slot_counts != nullptr ? slot_counts + first : nullptr);
    }
  });
  int64_t num_unique = 0;
  for (int64_t s = 0; s < kNumShares; ++s) {
    const int64_t first = s == 0 ? 0 : ends[s - 1];
    std::copy_n(items + first, share_unique[s], spare + num_unique);
    num_unique += share_unique[s];
  }
  const Item* sorted = SortUniqueItems(call, num_unique, items, spare);
  ParallelFor(call.executor, num_unique, 6, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      call.out.unique[u] = static_cast<int64_t>(sorted[u].key + call.min);
      if (slot_counts != nullptr) call.out.counts[u] = slot_counts[sorted[u].position];
      ranks[sorted[u].position] = u;
    }
  });
  if (call.out.inverse != nullptr) {
    ParallelFor(call.executor, num_keys, 3, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) call.out.inverse[n] = ranks[call.out.inverse[n]];
    });
  }
  return num_unique;
}

}  // namespace

int64_t Unique(const int64_t* keys, int64_t num_keys, const UniqueOutputs& out, const rh_executor* executor,
               Scratch* scratch) {
  if (num_keys == 0) return 0;
  const Chunks chunks = ChunksOf(num_keys, executor);
  int64_t* places = scratch->Take<int64_t>(chunks.count * kMaxPassDigits);
  Call call{keys, out, executor, scratch, chunks, places, 0, 0};
  FindRange(&call);
  if (call.key_bits + BitWidth(num_keys) <= 64) return UniqueOfNarrowRange(call);
  return num_keys < kFewKeys ? UniqueOfFewWide(call) : UniqueOfWideRange(call);
}

}  // namespace rankhouse

int rh_unique(const int64_t* keys, int64_t num_keys, int64_t* unique, int64_t* inverse, int64_t* counts,
              int64_t* num_unique, const rh_executor* executor) {
  using namespace rankhouse;
  return Guard([&] {
    Require(num_keys >= 0, "num_keys is ", num_keys, ": expected >= 0");
    Require(num_keys == 0 || (keys != nullptr && unique != nullptr), "keys or unique is NULL, but there are ", num_keys,
            " keys");
    Require(num_unique != nullptr, "num_unique is NULL");
    Scratch scratch(executor);
    *num_unique = Unique(keys, num_keys, {unique, inverse, counts}, executor, &scratch);
  });
}
