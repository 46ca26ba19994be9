#include "engine/row_index.h"

#include <algorithm>
#include <iterator>

namespace rankhouse::engine {
namespace {

constexpr int64_t kBlock = 64;

// The words of a filter: one for each entry, but no more than the bitmap of all ids has; a power of two.
size_t NumFilterWords(const std::vector<IndexEntry>& entries) {
  size_t num_words = 1;
  while (num_words < entries.size() && static_cast<int64_t>(num_words) * 64 <= entries.back().id) num_words *= 2;
  return num_words;
}

// Both sorted by id; of an id in both, the newer entry.
std::vector<IndexEntry> Merged(const std::vector<IndexEntry>& newer, const std::vector<IndexEntry>& older) {
  const auto before = [](const IndexEntry& a, const IndexEntry& b) { return a.id < b.id; };
  std::vector<IndexEntry> merged;
  merged.reserve(newer.size() + older.size());
  // set_union takes what both have from the first.
  std::set_union(newer.begin(), newer.end(), older.begin(), older.end(), std::back_inserter(merged), before);
  return merged;
}

std::vector<IndexEntry> EntriesOf(const IdLayer& layer) {
  std::vector<IndexEntry> entries;
  entries.reserve(layer.size());
  layer.AppendTo(&entries);
  return entries;
}

}  // namespace

IdLayer::IdLayer(const std::vector<IndexEntry>& entries)
    : filter_(NumFilterWords(entries)), filter_mask_(filter_.size() - 1), words_(kChunkWords) {
  if (entries.empty()) return;
  chunks_.resize((entries.back().id >> kChunkBits) + 1);
  places_.reserve(entries.size());
  for (const IndexEntry& entry : entries) {
    int32_t& chunk = chunks_[entry.id >> kChunkBits];
    if (chunk == 0) {
      chunk = static_cast<int32_t>(words_.size() / kChunkWords);
      // The words that have no bits count too: what is asked for is the rank of a bit that is set.
      words_.resize(words_.size() + kChunkWords);
    }
    Word& word = words_[static_cast<size_t>(chunk) * kChunkWords + ((entry.id >> 6) & (kChunkWords - 1))];
    if (word.bits == 0) word.rank = static_cast<int64_t>(places_.size());
    word.bits |= uint64_t{1} << (entry.id & 63);
    places_.push_back(entry.place);
    filter_[static_cast<uint64_t>(entry.id) >> 6 & filter_mask_] |= uint64_t{1} << (entry.id & 63);
  }
}

void IdLayer::AppendTo(std::vector<IndexEntry>* entries) const {
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (chunks_[chunk] == 0) continue;
    for (int64_t w = 0; w < kChunkWords; ++w) {
      const Word& word = words_[static_cast<size_t>(chunks_[chunk]) * kChunkWords + w];
      const int64_t first = static_cast<int64_t>(chunk) * (int64_t{1} << kChunkBits) + w * 64;
      int64_t place = word.rank;
      for (uint64_t bits = word.bits; bits != 0; bits &= bits - 1) {
        entries->push_back({first + __builtin_ctzll(bits), places_[place++]});
      }
    }
  }
}

RowIndex::RowIndex(const std::vector<int64_t>& num_rows) {
  int64_t end = 0;
  for (const int64_t rows : num_rows) ends_.push_back(end += rows);
}

void RowIndex::Resolve(int64_t* ids, int64_t n) const {
  for (int64_t begin = 0; begin < n; begin += kBlock) ResolveBlock(ids + begin, std::min(kBlock, n - begin));
}

// Most ids have not changed since the base, most often one file, whose places are the ids: so what is done for each of
// them has no branch, and the others are picked out by their bits.
void RowIndex::ResolveBlock(int64_t* ids, int64_t count) const {
  uint64_t changed = 0;
  for (const std::shared_ptr<const IdLayer>& layer : layers_) changed |= layer->MayHave(ids, count);
  const int64_t* found[kBlock];
  uint64_t held = 0;
  for (uint64_t rest = changed; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctzll(rest);
    found[i] = ids[i] < 0 ? nullptr : Find(ids[i]);
    __builtin_prefetch(found[i]);
    held |= uint64_t{found[i] != nullptr} << i;
  }
  if (ends_.size() == 1) {
    const auto end = static_cast<uint64_t>(ends_[0]);
    for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<uint64_t>(ids[i]) < end ? ids[i] : kNoPlace;
  } else {
    for (int64_t i = 0; i < count; ++i) ids[i] = BasePlace(ids[i]);
  }
  for (; held != 0; held &= held - 1) ids[__builtin_ctzll(held)] = *found[__builtin_ctzll(held)];
}

RowIndex RowIndex::Extended(const std::vector<int64_t>& ids, const std::vector<int64_t>& removed, int64_t file,
                            int64_t* num_entries) const {
  std::vector<IndexEntry> held;
  std::vector<IndexEntry> gone;
  held.reserve(ids.size());
  gone.reserve(removed.size());
  for (size_t row = 0; row < ids.size(); ++row) held.push_back({ids[row], PlaceOf(file, static_cast<int64_t>(row))});
  for (const int64_t id : removed) gone.push_back({id, kNoPlace});
  std::vector<IndexEntry> entries = gone.empty() ? std::move(held) : Merged(held, gone);
  RowIndex extended = *this;
  std::vector<std::shared_ptr<const IdLayer>>& layers = extended.layers_;
  while (!layers.empty() && 2 * static_cast<int64_t>(entries.size()) >= layers.front()->size()) {
    entries = Merged(entries, EntriesOf(*layers.front()));
    *num_entries += static_cast<int64_t>(entries.size());
    layers.erase(layers.begin());
  }
  layers.insert(layers.begin(), std::make_shared<const IdLayer>(entries));
  *num_entries += static_cast<int64_t>(ids.size() + removed.size());
  return extended;
}

}  // namespace rankhouse::engine
