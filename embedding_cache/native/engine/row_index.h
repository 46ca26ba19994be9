// From the ids of a table to the places of its effective rows.
//
// A version's index is that of the state before its last delta, with one more layer: what the delta holds. Where the
// newest layer has grown to half of the one below, the two are merged, so that there are O(log) layers and each row is
// written O(log) times, whatever the number of deltas: opening a delta of an open parent costs its own rows.
#ifndef RANKHOUSE_ENGINE_ROW_INDEX_H_
#define RANKHOUSE_ENGINE_ROW_INDEX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/row_source.h"

namespace rankhouse::engine {

// An id whose row a delta holds or removes.
struct IndexEntry {
  int64_t id;
  int64_t place;  // kNoPlace: it was removed
};

// The places of some ids: a bitmap that says which, with the count of those before each of its words, so that an id's
// bit gives its number among them. 2 bits for each id of the table in the chunks that have any, and 8 bytes for each
// entry. In front of it stands a filter, small enough for the processor's caches, that few of the other ids pass: the
// same bitmap folded until it has 64 bits for each entry. Immutable; any thread may read it.
class IdLayer {
 public:
  // entries: sorted by id, each once.
  explicit IdLayer(const std::vector<IndexEntry>& entries);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }

  // Bit i is 1 where the layer may have ids[i]; count <= 64. A bit that is 0 is certain.
  uint64_t MayHave(const int64_t* ids, int64_t count) const {
    const uint64_t* const filter = filter_.data();
    const uint64_t mask = filter_mask_;
    uint64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t id = static_cast<uint64_t>(ids[i]);
      found |= (filter[id >> 6 & mask] >> (id & 63) & 1) << i;
    }
    return found;
  }

  // Where the place of an id >= 0 stands; nullptr: the layer does not have it.
  const int64_t* Find(int64_t id) const {
    const uint64_t chunk = static_cast<uint64_t>(id) >> kChunkBits;
    if (chunk >= chunks_.size()) return nullptr;
    const Word& word = WordOf(chunk, id);
    const uint64_t bit = uint64_t{1} << (id & 63);
    if ((word.bits & bit) == 0) return nullptr;
    return &places_[word.rank + __builtin_popcountll(word.bits & (bit - 1))];
  }

  // Appends all entries in order.
  void AppendTo(std::vector<IndexEntry>* entries) const;

 private:
  static constexpr int kChunkBits = 10;
  static constexpr int64_t kChunkWords = (int64_t{1} << kChunkBits) / 64;

  struct Word {
    uint64_t bits;
    int64_t rank;  // of its first bit among all that are set
  };

  const Word& WordOf(uint64_t chunk, int64_t id) const {
    return words_[static_cast<size_t>(chunks_[chunk]) * kChunkWords + ((id >> 6) & (kChunkWords - 1))];
  }

  std::vector<uint64_t> filter_;
  uint64_t filter_mask_;         // of the numbers of its words
  std::vector<int32_t> chunks_;  // where in words_ a chunk of ids has its words; 0: nowhere, it has no entry
  std::vector<Word> words_;
  std::vector<int64_t> places_;
};

// Immutable; any thread may read it.
class RowIndex {
 public:
  // The index of a base: files of so many rows each, in their order.
  explicit RowIndex(const std::vector<int64_t>& num_rows);

  // This index after a delta, the table's file number `file`: its row i is that of ids[i]. Both lists are sorted, each
  // id once. Adds the number of entries that were written to num_entries.
  RowIndex Extended(const std::vector<int64_t>& ids, const std::vector<int64_t>& removed, int64_t file,
                    int64_t* num_entries) const;

  // Overwrites ids with the places of their effective rows; kNoPlace where a row was removed, or nothing holds it, or
  // the id is below 0.
  void Resolve(int64_t* ids, int64_t n) const;

  // What Resolve gives for one id.
  int64_t Place(int64_t id) const {
    Resolve(&id, 1);
    return id;
  }

 private:
  // Where the place of an id >= 0 that a delta has stands; nullptr: none has it.
  const int64_t* Find(int64_t id) const {
    for (const std::shared_ptr<const IdLayer>& layer : layers_) {
      if (const int64_t* place = layer->Find(id)) return place;
    }
    return nullptr;
  }

  int64_t BasePlace(int64_t id) const {
    if (id < 0 || id >= ends_.back()) return kNoPlace;
    int64_t file = 0;
    while (id >= ends_[file]) ++file;
    return PlaceOf(file, file == 0 ? id : id - ends_[file - 1]);
  }

  // Overwrites ids [count], count <= 64.
  void ResolveBlock(int64_t* ids, int64_t count) const;

  std::vector<int64_t> ends_;                           // of the base's files: the row after the last
  std::vector<std::shared_ptr<const IdLayer>> layers_;  // newest first
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ROW_INDEX_H_
