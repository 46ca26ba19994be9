#ifndef RANKHOUSE_CPU_FREE_IDS_H_
#define RANKHOUSE_CPU_FREE_IDS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace rankhouse {

// The ids that no key has, as ranges, so that their memory depends on how many were given out and not on how many there
// are.
class FreeIds {
 public:
  explicit FreeIds(std::vector<std::pair<int64_t, int64_t>> ranges = {}) : ranges_(std::move(ranges)) {
    std::make_heap(ranges_.begin(), ranges_.end(), std::greater<>());
  }

  bool empty() const { return ranges_.empty(); }

  // Takes the smallest free id; there is one.
  int64_t Take() noexcept {
    std::pop_heap(ranges_.begin(), ranges_.end(), std::greater<>());
    const int64_t id = ranges_.back().first++;
    if (ranges_.back().first == ranges_.back().second) {
      ranges_.pop_back();
    } else {
      std::push_heap(ranges_.begin(), ranges_.end(), std::greater<>());
    }
    return id;
  }

  // Makes room to give back num_ids. Throws std::bad_alloc.
  void Prepare(int64_t num_ids) { ranges_.reserve(ranges_.size() + static_cast<size_t>(num_ids)); }

  void GiveBack(int64_t id) noexcept {
    ranges_.emplace_back(id, id + 1);
    std::push_heap(ranges_.begin(), ranges_.end(), std::greater<>());
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // [begin, end), a heap with the smallest on top
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_FREE_IDS_H_
