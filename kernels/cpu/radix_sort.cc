#include "cpu/radix_sort.h"

#include <algorithm>
#include <array>

namespace rankhouse {
namespace {

constexpr int kMaxDigitBits = 11;  // 2048 counters of 8 bytes stay in the L1 cache
constexpr int64_t kFewKeys = 512;  // below, clearing counters costs more than comparing

void SortByDigit(const uint64_t* keys, uint64_t* sorted, int64_t num_keys, int shift, int bits) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  std::array<int64_t, size_t{1} << kMaxDigitBits> place;
  std::fill_n(place.begin(), mask + 1, 0);
  for (int64_t k = 0; k < num_keys; ++k) ++place[keys[k] >> shift & mask];
  int64_t sum = 0;
  for (uint64_t digit = 0; digit <= mask; ++digit) {
    const int64_t count = place[digit];
    place[digit] = sum;
    sum += count;
  }
  for (int64_t k = 0; k < num_keys; ++k) sorted[place[keys[k] >> shift & mask]++] = keys[k];
}

}  // namespace

uint64_t* RadixSort(uint64_t* keys, uint64_t* spare, int64_t num_keys, int shift, int bits) {
  if (num_keys < 2 || bits == 0) return keys;
  if (num_keys < kFewKeys) {
    const auto less = [shift](uint64_t a, uint64_t b) { return a >> shift < b >> shift; };
    std::stable_sort(keys, keys + num_keys, less);
    return keys;
  }
  const int num_passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
  const int digit_bits = (bits + num_passes - 1) / num_passes;
  for (int pass = 0; pass < num_passes; ++pass) {
    SortByDigit(keys, spare, num_keys, shift + pass * digit_bits, digit_bits);
    std::swap(keys, spare);
  }
  return keys;
}

}  // namespace rankhouse
