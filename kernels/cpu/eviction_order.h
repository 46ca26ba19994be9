// Which key goes next.
#ifndef RANKHOUSE_CPU_EVICTION_ORDER_H_
#define RANKHOUSE_CPU_EVICTION_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/key_table.h"

namespace rankhouse {

// The keys of one kind (with an id, or candidates) in the order in which they go: the oldest or the rarest first.
//
// A heap with the statistics that each key had when it came into it. Statistics only grow, so a key's place in the heap
// is never behind its true one: an element on top that has grown since is put back where it belongs, and one whose key
// went is dropped. Noting that a key was seen again costs nothing, and each sight costs at most one such move.
//
// It is built from the table when it is first needed.
class EvictionOrder {
 public:
  EvictionOrder(bool rarest_first, bool of_candidates) : rarest_first_(rarest_first), of_candidates_(of_candidates) {}

  // Builds it if it is not there, and makes room for num_new keys more, so that what follows cannot fail. num_keys are
  // in the table of this kind. Throws std::bad_alloc.
  void Prepare(const KeyTable& table, int64_t num_keys, int64_t num_new);

  // Forgets the order: the table changed in other ways.
  void Reset() noexcept;

  // Notes a new key, which waits until Settle; does nothing before the order is built.
  void Add(int64_t key, KeyStatistics statistics) noexcept;

  // Takes the slot of the key that goes first, or returns -1 if there is none. A key with an id that was seen in `step`
  // cannot go; it waits until Settle.
  int64_t Pop(const KeyTable& table, int64_t step) noexcept;

  // Puts the keys that wait into the order.
  void Settle() noexcept;

  bool is_built() const { return is_built_; }

 private:
  struct Element {
    int64_t first;
    int64_t second;
    int64_t key;

    bool operator<(const Element& other) const;  // goes later: a heap has its largest on top
    bool operator==(const Element& other) const;
  };

  Element ElementOf(int64_t key, KeyStatistics statistics) const;
  bool Holds(const KeyTable& table, int64_t slot) const;
  void DropTheDead(const KeyTable& table) noexcept;
  void DropTop() noexcept;

  const bool rarest_first_;
  const bool of_candidates_;
  bool is_built_ = false;
  std::vector<Element> elements_;  // a heap of num_ordered_, then those that wait
  size_t num_ordered_ = 0;
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_EVICTION_ORDER_H_
