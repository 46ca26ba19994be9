// Threads that find and insert the same few rows at the same time, with new bytes each time, which the engine never
// does: so that a row that comes out of two writes, or of another key, is seen.
//
// Usage: stress_row_cache <rounds>. Prints what is wrong and returns 1; the thread sanitizer finds the rest.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cache/row_cache.h"

namespace {

using rankhouse::cache::Policy;
using rankhouse::cache::RowCache;

constexpr int kThreads = 4;
constexpr int64_t kKeysPerCall = 40;
constexpr uint64_t kNumKeys = 64;

// Row: its key, then the same random byte to the end.
bool IsWhole(uint64_t key, const std::byte* row, int64_t row_bytes) {
  uint64_t found = 0;
  std::memcpy(&found, row, sizeof(found));
  for (int64_t i = sizeof(found) + 1; i < row_bytes; ++i) {
    if (row[i] != row[sizeof(found)]) return false;
  }
  return found == key;
}

// Returns how many rows were wrong.
int64_t Work(RowCache* cache, int seed, int rounds) {
  std::mt19937_64 random(seed);
  const int64_t row_bytes = cache->row_bytes();
  std::vector<uint64_t> keys(kKeysPerCall);
  std::vector<std::byte> rows(kKeysPerCall * row_bytes);
  std::vector<int32_t> missing(kKeysPerCall);
  int64_t num_wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t& key : keys) key = random() % kNumKeys;
    const int64_t num_missing = cache->Find(keys.data(), kKeysPerCall, rows.data(), missing.data());
    for (int64_t i = 0, at = 0; i < kKeysPerCall; ++i) {
      if (at < num_missing && missing[at] == i) {
        ++at;
      } else {
        num_wrong += !IsWhole(keys[i], rows.data() + i * row_bytes, row_bytes);
      }
    }
    for (int64_t i = 0; i < kKeysPerCall; ++i) {
      std::byte* row = rows.data() + i * row_bytes;
      std::memset(row, static_cast<int>(random() % 256), row_bytes);
      std::memcpy(row, &keys[i], sizeof(keys[i]));
    }
    cache->Insert(keys.data(), kKeysPerCall / 4, rows.data());
  }
  return num_wrong;
}

// Returns whether all was right.
bool Run(int64_t row_bytes, Policy policy, int rounds) {
  RowCache cache(5 * (128 + 8 * ((row_bytes + 7) / 8 * 8)), row_bytes, policy);  // 5 sets
  std::vector<int64_t> num_wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { num_wrong[t] = Work(&cache, t, rounds); });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t total = 0;
  for (const int64_t count : num_wrong) total += count;
  const rankhouse::cache::CacheStats stats = cache.stats();
  std::printf("row_bytes %lld: %lld hits, %lld misses, %lld evicted, %lld wrong\n", static_cast<long long>(row_bytes),
              static_cast<long long>(stats.hits), static_cast<long long>(stats.misses),
              static_cast<long long>(stats.evicted), static_cast<long long>(total));
  return total == 0 && stats.hits > 0 && stats.evicted > 0 && stats.num_rows == stats.inserted - stats.evicted &&
         stats.num_rows <= stats.capacity_rows;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  bool right = true;
  for (const Policy policy : {Policy::kLru, Policy::kLfu}) {
    for (const int64_t row_bytes : {9, 64, 1001}) right = Run(row_bytes, policy, rounds) && right;
  }
  return right ? 0 : 1;
}
