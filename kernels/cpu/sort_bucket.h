// Sorts ids that share their high bits, on one thread.
#ifndef RANKHOUSE_CPU_SORT_BUCKET_H_
#define RANKHOUSE_CPU_SORT_BUCKET_H_

#include <algorithm>
#include <array>
#include <cstdint>

namespace rankhouse {

// An entry is `low bits of an id | source`, from the top.
struct EntryLayout {
  int source_bits;
  int low_bits;
};

namespace bucket {

constexpr int kMaxDigitBits = 11;    // 2048 counters of 4 bytes stay in the L1 cache
constexpr int64_t kFewEntries = 24;  // below, comparing is cheaper than counting

// The number of passes that costs least: each reads and writes all entries and goes through all counters.
inline int NumPasses(int64_t num_entries, int bits) {
  int best = 1;
  int64_t least = 0;
  for (int passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits; passes <= bits; ++passes) {
    const int64_t cost = passes * (2 * num_entries + (int64_t{1} << (bits + passes - 1) / passes));
    if (least != 0 && cost >= least) break;
    best = passes;
    least = cost;
  }
  return best;
}

// One pass by the digit of `bits` bits above `shift`; sorted entries get `high` on top.
template <typename Entry, typename Key>
void SortByDigit(const Entry* entries, int64_t num_entries, int shift, int bits, uint64_t high, Key* sorted) {
  std::array<uint32_t, size_t{1} << kMaxDigitBits> next;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  std::fill_n(next.begin(), mask + 1, 0);
  for (int64_t k = 0; k < num_entries; ++k) ++next[entries[k] >> shift & mask];
  uint32_t sum = 0;
  for (uint64_t digit = 0; digit <= mask; ++digit) {
    const uint32_t count = next[digit];
    next[digit] = sum;
    sum += count;
  }
  for (int64_t k = 0; k < num_entries; ++k) {
    sorted[next[entries[k] >> shift & mask]++] = static_cast<Key>(high | entries[k]);
  }
}

template <typename Entry>
void InsertionSort(Entry* entries, int64_t num_entries) {
  for (int64_t k = 1; k < num_entries; ++k) {
    const Entry entry = entries[k];
    int64_t place = k;
    for (; place > 0 && entries[place - 1] > entry; --place) entries[place] = entries[place - 1];
    entries[place] = entry;
  }
}

}  // namespace bucket

// keys [num_entries] = the entries, sorted, with `high` on top. Entries with equal low bits must come with rising
// sources. entries and spare [num_entries] are overwritten.
template <typename Entry>
void SortBucket(Entry* entries, Entry* spare, int64_t num_entries, EntryLayout layout, uint64_t high, uint64_t* keys) {
  if (num_entries <= bucket::kFewEntries || layout.low_bits == 0) {
    if (layout.low_bits > 0) bucket::InsertionSort(entries, num_entries);
    for (int64_t k = 0; k < num_entries; ++k) keys[k] = high | entries[k];
    return;
  }
  const int num_passes = bucket::NumPasses(num_entries, layout.low_bits);
  int shift = layout.source_bits;
  for (int pass = 0; pass < num_passes; ++pass) {
    const int bits = (layout.low_bits + num_passes - 1 - pass) / num_passes;
    if (pass == num_passes - 1) {
      bucket::SortByDigit(entries, num_entries, shift, bits, high, keys);
    } else {
      bucket::SortByDigit(entries, num_entries, shift, bits, 0, spare);
      std::swap(entries, spare);
    }
    shift += bits;
  }
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_SORT_BUCKET_H_
