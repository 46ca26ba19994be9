#include "transform/text_index.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "format/json.h"

namespace rankhouse::transform {
namespace {

using format::RequireIntact;

constexpr uint64_t kBase = 0x9E3779B97F4A7C15;
constexpr uint64_t kTable = 0xD6E8FEB86659FD93;
constexpr uint64_t kLength = 0xCA5A826395121157;
constexpr int64_t kPowers = 256;  // Longer texts are hashed in parts.

constexpr std::array<uint64_t, kPowers> Powers() {
  std::array<uint64_t, kPowers> powers = {};
  uint64_t power = 1;
  for (uint64_t& own : powers) own = power *= kBase;
  return powers;
}

constexpr std::array<uint64_t, kPowers> kPowersOfBase = Powers();  // of 1 and on

// Checks that the ends of stretches begin at 0, never fall, and end at `last`.
void RequireRun(const std::string& path, const char* name, const std::vector<int64_t>& ends, int64_t last) {
  const bool runs = !ends.empty() && ends.front() == 0 && ends.back() == last;
  RequireIntact(runs && std::is_sorted(ends.begin(), ends.end()), path, "text.", name, " does not run from 0 to ",
                last);
}

}  // namespace

uint64_t HashOf(const uint8_t* data, int64_t size, int64_t table) {
  uint64_t hash = 0;
  uint64_t factor = 1;
  for (int64_t begin = 0; begin < size; begin += kPowers) {
    const int64_t count = std::min(kPowers, size - begin);
    uint64_t part = 0;
    for (int64_t i = 0; i < count; ++i) part += (uint64_t{data[begin + i]} + 1) * kPowersOfBase[i];
    hash += part * factor;
    factor *= kPowersOfBase[kPowers - 1];
  }
  hash ^= static_cast<uint64_t>(size) * kLength + (static_cast<uint64_t>(table) + 1) * kTable;
  hash = (hash ^ hash >> 33) * 0xFF51AFD7ED558CCD;
  hash = (hash ^ hash >> 33) * 0xC4CEB9FE1A85EC53;
  return hash ^ hash >> 33;
}

TextIndex::TextIndex(const format::TensorFile& file, int64_t num_tables)
    : path_(&file.path()),
      data_(file.array<uint8_t>("text.data", "U8")),
      offsets_(file.array<int64_t>("text.offsets", "I64")),
      slots_(file.array<uint64_t>("text.slots", "U64")) {
  RequireIntact(offsets_.size() > 0 && offsets_[0] == 0 && offsets_.back() == data_.size(), *path_,
                "text.offsets does not run from 0 to ", data_.size());
  const int64_t num_slots = slots_.size();
  const bool is_power = num_slots > 0 && (num_slots & (num_slots - 1)) == 0;
  RequireIntact(is_power && num_slots >= 2 * num_texts(), *path_, "text.slots has ", num_slots, " slots for ",
                num_texts(), " texts; expected a power of two, 2 n or more");
  const auto starts = file.array<int64_t>("text.table_starts", "I64");
  for (int64_t table = 0; table < starts.size(); ++table) table_starts_.push_back(starts[table]);
  RequireRun(*path_, "table_starts", table_starts_, num_texts());
  RequireIntact(starts.size() == num_tables + 1, *path_, "the text index is of ", starts.size() - 1,
                " tables; expected ", num_tables);
}

Text TextIndex::text(int64_t number, int64_t table) const {
  const int64_t begin = offsets_[number], end = offsets_[number + 1];
  RequireIntact(0 <= begin && begin <= end && end <= data_.size(), *path_, "text.offsets has ", begin, " and ", end,
                " for text ", number, "; expected places in text.data, which has ", data_.size(), " bytes");
  const auto* data = reinterpret_cast<const uint8_t*>(data_.address(begin));
  return {data, end - begin, table, HashOf(data, end - begin, table)};
}

void TextIndex::PrefetchSlot(uint64_t hash) const {
  __builtin_prefetch(slots_.address(static_cast<int64_t>(hash & static_cast<uint64_t>(slots_.size() - 1))));
}

void TextIndex::PrefetchOffsets(int64_t number) const {
  if (Holds(number)) __builtin_prefetch(offsets_.address(number));
}

void TextIndex::PrefetchText(int64_t number) const {
  if (!Holds(number)) return;
  const int64_t begin = offsets_[number];
  if (0 <= begin && begin < data_.size()) __builtin_prefetch(data_.address(begin));
}

bool TextIndex::IsEqual(const Text& text, int64_t number) const {
  // The table's texts are among all texts.
  if (number < table_begin(text.table) || number >= table_end(text.table)) return false;
  const int64_t begin = offsets_[number];
  if (begin < 0 || begin > data_.size() - text.size || offsets_[number + 1] != begin + text.size) return false;
  return std::memcmp(data_.address(begin), text.data, text.size) == 0;
}

TextChanges::TextChanges(int64_t capacity) {
  int64_t num_slots = 2;
  while (num_slots < 2 * capacity) num_slots *= 2;
  slots_.resize(num_slots);
  texts_.reserve(capacity);
  ids_.reserve(capacity);
}

void TextChanges::Add(const Text& text, int64_t id) {
  Probe probe;
  int64_t number;
  while ((number = Candidate(text, &probe)) != kAbsent) {
    if (IsEqual(text, number)) return;
  }
  const uint64_t mask = slots_.size() - 1;
  uint64_t place = text.hash & mask;
  while (slots_[place] != 0) place = (place + 1) & mask;
  texts_.push_back(text);
  ids_.push_back(id);
  slots_[place] = text.hash >> 32 << 32 | texts_.size();
}

bool TextChanges::IsEqual(const Text& text, int64_t number) const {
  const Text& own = texts_[number];
  return own.hash == text.hash && own.table == text.table && own.size == text.size &&
         std::memcmp(own.data, text.data, text.size) == 0;
}

}  // namespace rankhouse::transform
