// What the fuzz driver's subjects share: random numbers, arrays between guard zones, random executors.
#ifndef RANKHOUSE_TESTS_KERNELS_FUZZ_SUPPORT_H_
#define RANKHOUSE_TESTS_KERNELS_FUZZ_SUPPORT_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "rankhouse/kernels.h"

// Ends the program; main.cc has said which seed and round it is.
#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      std::fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, rh_last_error()); \
      std::abort();                                                                                         \
    }                                                                                                       \
  } while (0)

namespace fuzz {

// Takes note of outputs that are the same bits in every build and on every processor; main.cc prints them as one
// number.
void Record(const void* outputs, int64_t bytes);

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // From least to most, both included.
  int64_t Between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(engine_); }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  float Number() { return std::uniform_real_distribution<float>(-2.0f, 2.0f)(engine_); }
  float Positive() { return std::uniform_real_distribution<float>(0.05f, 2.0f)(engine_); }

  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Between(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// An array at any address that fits its type, between guard zones. Under AddressSanitizer it ends where its memory
// does, so that what is read behind it is seen, too.
template <typename T>
class Guarded {
 public:
  Guarded() : Guarded(0) {}
  explicit Guarded(int64_t count, int64_t shift = 0)
      : count_(count), before_(kGuard + shift * static_cast<int64_t>(sizeof(T))) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    memory_.reset(static_cast<char*>(std::malloc(before_ + bytes + kBehind)));
    CHECK(memory_ != nullptr);
    std::memset(memory_.get(), kPattern, before_);
    std::memset(static_cast<void*>(data()), 0, bytes);
    std::memset(memory_.get() + before_ + bytes, kPattern, kBehind);
  }
  Guarded(Random* random, int64_t count) : Guarded(count, random->Between(0, 3)) {}
  Guarded(Guarded&&) = default;
  Guarded& operator=(Guarded&&) = default;
  ~Guarded() {
    if (memory_ != nullptr) CheckGuard();
  }

  T* data() const { return reinterpret_cast<T*>(memory_.get() + before_); }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) const { return data()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + count_; }

  // As the interface takes it: an array without elements may be NULL.
  T* OrNull() const { return count_ == 0 ? nullptr : data(); }

  bool operator==(const Guarded& other) const {
    return count_ == other.count_ && (count_ == 0 || std::memcmp(data(), other.data(), count_ * sizeof(T)) == 0);
  }
  Guarded Copy() const {
    Guarded copy(count_);
    if (count_ > 0) std::memcpy(copy.data(), data(), count_ * sizeof(T));
    return copy;
  }
  void Record() const { fuzz::Record(data(), count_ * static_cast<int64_t>(sizeof(T))); }
  void CheckGuard() const {
    for (int64_t i = 0; i < before_; ++i) CHECK(memory_.get()[i] == kPattern);
    for (int64_t i = 0; i < kBehind; ++i) CHECK(reinterpret_cast<const char*>(end())[i] == kPattern);
  }

 private:
  static constexpr int64_t kGuard = 64;
#if defined(__SANITIZE_ADDRESS__)
  static constexpr int64_t kBehind = 0;
#else
  static constexpr int64_t kBehind = kGuard;
#endif
  static constexpr char kPattern = 0x5a;
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  int64_t count_;
  int64_t before_;
  std::unique_ptr<char, Free> memory_;
};

// Any of the ways to spread work: NULL, numbers of threads, a pool, a scratch, and an order from last to first.
class RandomExecutor {
 public:
  explicit RandomExecutor(Random* random);
  const rh_executor* get() const { return is_null_ ? nullptr : &executor_; }

 private:
  bool is_null_;
  rh_executor executor_ = {};
};

// The subjects: each makes one random case of its operations and checks it.
void FuzzLookup(Random* random);
void FuzzTraining(Random* random);
void FuzzRows(Random* random);
void FuzzInteraction(Random* random);
void FuzzUnique(Random* random);
void FuzzVocabulary(Random* random);

}  // namespace fuzz

#endif  // RANKHOUSE_TESTS_KERNELS_FUZZ_SUPPORT_H_
