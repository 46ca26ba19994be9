// From (table, text) to a number: open addressing with linear probing, FORMAT.md "Compiled transform".
//
// Slots hold the upper half of a text's hash above its number plus 1. A hash only decides where to look: the bytes are
// compared.
#ifndef RANKHOUSE_TRANSFORM_TEXT_INDEX_H_
#define RANKHOUSE_TRANSFORM_TEXT_INDEX_H_

#include <cstdint>
#include <vector>

#include "format/tensor_file.h"

namespace rankhouse::transform {

constexpr int64_t kAbsent = -1;

// A text of the table with this number, to be looked up.
struct Text {
  const uint8_t* data;
  int64_t size;
  int64_t table;
  uint64_t hash;
};

uint64_t HashOf(const uint8_t* data, int64_t size, int64_t table);

// Walks over the slots from a text's own to the first empty one, and stops at those of the same upper half.
class Probe {
 public:
  // The number in the next slot of the same upper half, or kAbsent. Slots: an array of a power of two, 1 or more, of
  // which none need be empty.
  template <typename Slots>
  int64_t Next(const Slots& slots, uint64_t hash) {
    const auto num_slots = static_cast<uint64_t>(slots.size());
    while (seen_ < num_slots) {
      const uint64_t slot = slots[(hash + seen_) & (num_slots - 1)];
      if (slot == 0) return kAbsent;
      ++seen_;
      if (slot >> 32 == hash >> 32) return static_cast<int64_t>(slot & 0xFFFFFFFF) - 1;
    }
    return kAbsent;
  }

 private:
  uint64_t seen_ = 0;
};

// The texts of one layer, in a tensor file. Immutable; any thread may use it. It does not own the arrays, and whatever
// they hold, nothing outside of them is read.
class TextIndex {
 public:
  // Throws Error: RH_CORRUPT where an array is missing or they do not fit each other.
  TextIndex(const format::TensorFile& file, int64_t num_tables);

  int64_t num_texts() const { return offsets_.size() - 1; }
  // The numbers of a table's texts are those from the one to the other, all of them below num_texts().
  int64_t table_begin(int64_t table) const { return table_starts_[table]; }
  int64_t table_end(int64_t table) const { return table_starts_[table + 1]; }
  // A text by its number. Throws Error: RH_CORRUPT where its offsets are not of this file.
  Text text(int64_t number, int64_t table) const;

  void PrefetchSlot(uint64_t hash) const;
  int64_t Candidate(const Text& text, Probe* probe) const { return probe->Next(slots_, text.hash); }
  void PrefetchOffsets(int64_t number) const;
  void PrefetchText(int64_t number) const;
  bool IsEqual(const Text& text, int64_t number) const;

 private:
  bool Holds(int64_t number) const { return number >= 0 && number < num_texts(); }

  const std::string* path_;
  format::ArrayView<uint8_t> data_;
  format::ArrayView<int64_t> offsets_;
  format::ArrayView<uint64_t> slots_;
  std::vector<int64_t> table_starts_;
};

// Texts of several layers and the id that the newest of them gives. Its numbers are positions in the order of adding.
class TextChanges {
 public:
  explicit TextChanges(int64_t capacity);  // the most texts that are added

  // Adds a text unless it is there.
  void Add(const Text& text, int64_t id);
  bool empty() const { return texts_.empty(); }
  int64_t id(int64_t number) const { return ids_[number]; }

  void PrefetchSlot(uint64_t hash) const { __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]); }
  int64_t Candidate(const Text& text, Probe* probe) const { return probe->Next(slots_, text.hash); }
  void PrefetchOffsets(int64_t number) const { __builtin_prefetch(&texts_[number]); }
  void PrefetchText(int64_t number) const { __builtin_prefetch(texts_[number].data); }
  bool IsEqual(const Text& text, int64_t number) const;

 private:
  std::vector<uint64_t> slots_;
  std::vector<Text> texts_;
  std::vector<int64_t> ids_;
};

constexpr int64_t kMaxTexts = 64;

// Looks n <= kMaxTexts texts up: their numbers, or kAbsent. All go through each step together, so that they wait for
// memory together: what the next step reads is asked for in this one.
template <typename Index>
void FindTexts(const Index& index, const Text* texts, int64_t n, int64_t* numbers) {
  Probe probes[kMaxTexts];
  for (int64_t i = 0; i < n; ++i) index.PrefetchSlot(texts[i].hash);
  for (int64_t i = 0; i < n; ++i) {
    numbers[i] = index.Candidate(texts[i], &probes[i]);
    if (numbers[i] != kAbsent) index.PrefetchOffsets(numbers[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    if (numbers[i] != kAbsent) index.PrefetchText(numbers[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    while (numbers[i] != kAbsent && !index.IsEqual(texts[i], numbers[i])) {
      numbers[i] = index.Candidate(texts[i], &probes[i]);
    }
  }
}

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_TEXT_INDEX_H_
