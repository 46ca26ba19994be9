#include "cpu/eviction_order.h"

#include <algorithm>
#include <tuple>

namespace rankhouse {

bool EvictionOrder::Element::operator<(const Element& other) const {
  return std::tie(first, second, key) > std::tie(other.first, other.second, other.key);
}

bool EvictionOrder::Element::operator==(const Element& other) const {
  return std::tie(first, second, key) == std::tie(other.first, other.second, other.key);
}

EvictionOrder::Element EvictionOrder::ElementOf(int64_t key, KeyStatistics statistics) const {
  return rarest_first_ ? Element{statistics.count, statistics.last_step, key}
                       : Element{statistics.last_step, statistics.count, key};
}

bool EvictionOrder::Holds(const KeyTable& table, int64_t slot) const {
  const int64_t tag = table.tag(slot);
  return tag != kFreeSlot && (tag == kCandidate) == of_candidates_;
}

void EvictionOrder::Prepare(const KeyTable& table, int64_t num_keys, int64_t num_new) {
  constexpr size_t kFew = 1024;
  if (!is_built_) {
    elements_.reserve(static_cast<size_t>(num_keys + num_new));
    for (int64_t slot = 0; slot < table.num_slots(); ++slot) {
      if (Holds(table, slot)) elements_.push_back(ElementOf(table.key(slot), table.statistics(slot)));
    }
    std::make_heap(elements_.begin(), elements_.end());
    num_ordered_ = elements_.size();
    is_built_ = true;
  } else if (elements_.size() > 2 * static_cast<size_t>(num_keys) + kFew) {
    DropTheDead(table);
  }
  const size_t size = elements_.size() + static_cast<size_t>(num_new);
  if (size > elements_.capacity()) elements_.reserve(std::max(size, elements_.capacity() / 2 * 3));
}

void EvictionOrder::DropTheDead(const KeyTable& table) noexcept {
  size_t num_alive = 0;
  for (const Element& element : elements_) {
    const int64_t slot = table.Find(element.key);
    if (slot >= 0 && Holds(table, slot)) elements_[num_alive++] = ElementOf(element.key, table.statistics(slot));
  }
  elements_.resize(num_alive);
  // A key that went and came back has several elements.
  std::sort(elements_.begin(), elements_.end());
  elements_.erase(std::unique(elements_.begin(), elements_.end()), elements_.end());
  std::make_heap(elements_.begin(), elements_.end());
  num_ordered_ = elements_.size();
}

void EvictionOrder::Reset() noexcept {
  std::vector<Element>().swap(elements_);
  num_ordered_ = 0;
  is_built_ = false;
}

void EvictionOrder::Add(int64_t key, KeyStatistics statistics) noexcept {
  if (is_built_) elements_.push_back(ElementOf(key, statistics));
}

void EvictionOrder::DropTop() noexcept {
  std::pop_heap(elements_.begin(), elements_.begin() + num_ordered_);
  --num_ordered_;
  elements_[num_ordered_] = elements_.back();
  elements_.pop_back();
}

int64_t EvictionOrder::Pop(const KeyTable& table, int64_t step) noexcept {
  while (num_ordered_ > 0) {
    const Element top = elements_.front();
    const int64_t slot = table.Find(top.key);
    if (slot < 0 || !Holds(table, slot)) {
      DropTop();
      continue;
    }
    const KeyStatistics& statistics = table.statistics(slot);
    const Element now = ElementOf(top.key, statistics);
    if (!of_candidates_ && statistics.last_step == step) {
      std::pop_heap(elements_.begin(), elements_.begin() + num_ordered_);
      elements_[--num_ordered_] = now;
    } else if (now == top) {
      DropTop();
      return slot;
    } else {
      std::pop_heap(elements_.begin(), elements_.begin() + num_ordered_);
      elements_[num_ordered_ - 1] = now;
      std::push_heap(elements_.begin(), elements_.begin() + num_ordered_);
    }
  }
  return -1;
}

void EvictionOrder::Settle() noexcept {
  while (num_ordered_ < elements_.size()) {
    ++num_ordered_;
    std::push_heap(elements_.begin(), elements_.begin() + num_ordered_);
  }
}

}  // namespace rankhouse
