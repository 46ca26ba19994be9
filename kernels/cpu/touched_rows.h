// Which rows of a table a batch touches, and which place each has among them.
#ifndef RANKHOUSE_CPU_TOUCHED_ROWS_H_
#define RANKHOUSE_CPU_TOUCHED_ROWS_H_

#include <cstdint>

#include "cpu/simd.h"

namespace rankhouse {

// One bit for each row, and for each 64 of them how many come before: the place of a row is found without a sort or a
// search. One thread writes it.
class TouchedRows {
 public:
  struct Word {
    uint64_t bits;
    uint64_t before;  // rows touched in the words before
  };

  static int64_t NumWords(int64_t num_rows) { return (num_rows - 1) / 64 + 1; }

  // words [NumWords(num_rows)].
  TouchedRows(Word* words, int64_t num_words) : words_(words), num_words_(num_words) {}

  void Clear() {
    for (int64_t w = 0; w < num_words_; ++w) words_[w].bits = 0;
  }

  RH_INLINE void Touch(int64_t row) const { words_[row >> 6].bits |= uint64_t{1} << (row & 63); }

  // When all rows are touched, before the first PlaceOf: returns how many there are.
  int64_t Count() {
    uint64_t sum = 0;
    for (int64_t w = 0; w < num_words_; ++w) {
      words_[w].before = sum;
      sum += static_cast<uint64_t>(__builtin_popcountll(words_[w].bits));
    }
    return static_cast<int64_t>(sum);
  }

  // The number of touched rows before a touched one.
  RH_INLINE uint64_t PlaceOf(int64_t row) const {
    const Word& word = words_[row >> 6];
    const uint64_t below = (uint64_t{1} << (row & 63)) - 1;
    return word.before + static_cast<uint64_t>(__builtin_popcountll(word.bits & below));
  }

  // Starts loading what Touch and PlaceOf of a row need. The row may be wild.
  RH_INLINE void Prefetch(int64_t row) const {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(words_) +
                                                     (static_cast<uintptr_t>(row) >> 6) * sizeof(Word)));
  }

  // Calls body(row) for each touched row, increasing.
  template <typename Body>
  void ForEach(Body body) const {
    for (int64_t w = 0; w < num_words_; ++w) {
      for (uint64_t bits = words_[w].bits; bits != 0; bits &= bits - 1) body(w * 64 + __builtin_ctzll(bits));
    }
  }

 private:
  Word* words_;
  int64_t num_words_;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_TOUCHED_ROWS_H_
