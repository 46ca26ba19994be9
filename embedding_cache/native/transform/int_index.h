// Integers of a table and their ids, sorted for search.
#ifndef RANKHOUSE_TRANSFORM_INT_INDEX_H_
#define RANKHOUSE_TRANSFORM_INT_INDEX_H_

#include <cstdint>

#include "format/tensor_file.h"

namespace rankhouse::transform {

constexpr int64_t kUntold = -2;  // What stands for an id where an index says nothing of a value.

// Immutable; any thread may use it. It does not own the arrays.
class IntIndex {
 public:
  IntIndex() = default;
  // values: sorted. If they are not, values may not be found, and nothing else happens.
  IntIndex(format::ArrayView<int64_t> values, format::ArrayView<int64_t> ids) : values_(values), ids_(ids) {}

  int64_t size() const { return values_.size(); }
  int64_t value(int64_t place) const { return values_[place]; }
  int64_t id(int64_t place) const { return ids_[place]; }
  format::ArrayView<int64_t> ids() const { return ids_; }

  // Looks n values up; an id is kUntold where there is none.
  void Find(const int64_t* values, int64_t n, int64_t* ids) const;

 private:
  format::ArrayView<int64_t> values_;
  format::ArrayView<int64_t> ids_;
};

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_INT_INDEX_H_
