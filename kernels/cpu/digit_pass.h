// One pass of a radix sort by many threads.
#ifndef RANKHOUSE_CPU_DIGIT_PASS_H_
#define RANKHOUSE_CPU_DIGIT_PASS_H_

#include <algorithm>
#include <cstdint>

#include "cpu/parallel.h"

namespace rankhouse {

constexpr int kMaxPassBits = 11;  // 2048 counters of 8 bytes stay in the L1 cache
constexpr int64_t kMaxPassDigits = int64_t{1} << kMaxPassBits;

// Equal parts of an array; a thread owns one at a time.
struct Chunks {
  int64_t total;
  int64_t count;

  int64_t Begin(int64_t chunk) const { return total / count * chunk + std::min(chunk, total % count); }
};

// Calls body(chunk, begin, end) for each chunk; `cost` is about how many cycles one element takes.
template <typename Body>
void ForEachChunk(const rh_executor* executor, const Chunks& chunks, int64_t cost, Body body) {
  ParallelFor(executor, chunks.count, cost * (chunks.total / chunks.count + 1), [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) body(chunk, chunks.Begin(chunk), chunks.Begin(chunk + 1));
  });
}

// Writes item(0), item(1), ... to `sorted` in the order of their digits (below 2^bits); equal digits keep their order.
// Where all digits are equal and `may_skip`, writes nothing and returns false. After it, places [chunks, 2^bits] holds
// in its last row where each digit ends.
//
// A chunk's items of one digit are written by one thread, to places that no other chunk has. Bytes moved: the items
// read twice and written once.
template <typename Item, typename Digit, typename Result>
bool SortByDigit(const rh_executor* executor, const Chunks& chunks, Item item, Digit digit, int bits, bool may_skip,
                 int64_t* places, Result* sorted) {
  const int64_t num_digits = int64_t{1} << bits;
  ForEachChunk(executor, chunks, 2, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t* counts = places + chunk * num_digits;
    std::fill_n(counts, num_digits, 0);
    for (int64_t i = begin; i < end; ++i) ++counts[digit(item(i))];
  });
  if (may_skip) {
    const uint64_t first = digit(item(0));
    int64_t equal = 0;
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) equal += places[chunk * num_digits + first];
    if (equal == chunks.total) return false;
  }
  int64_t sum = 0;
  for (int64_t d = 0; d < num_digits; ++d) {
    for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const int64_t count = places[chunk * num_digits + d];
      places[chunk * num_digits + d] = sum;
      sum += count;
    }
  }
  ForEachChunk(executor, chunks, 6, [&](int64_t chunk, int64_t begin, int64_t end) {
    int64_t* place = places + chunk * num_digits;
    for (int64_t i = begin; i < end; ++i) {
      const Result value = item(i);
      sorted[place[digit(value)]++] = value;
    }
  });
  return true;
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_DIGIT_PASS_H_
