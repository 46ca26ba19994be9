#include "transform/raw_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/status.h"

namespace rankhouse::transform {
namespace {

void CheckSizes(const rh_raw_batch& batch) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Require(batch.num_rows >= 0 && batch.num_rows <= kMost, "num_rows is ", batch.num_rows, ": expected 0 to ", kMost);
  Require(batch.num_ints >= 0 && batch.num_texts >= 0 && batch.num_text_bytes >= 0, "num_ints, num_texts and ",
          "num_text_bytes are ", batch.num_ints, ", ", batch.num_texts, " and ", batch.num_text_bytes,
          ": expected none of them to be negative");
}

void CheckColumns(const char* name, int64_t found, int64_t expected) {
  Require(found == expected, name, " has ", found, " columns; this model has ", expected, " such features");
}

void CheckPointer(const char* name, const void* pointer, int64_t size) {
  Require(pointer != nullptr || size == 0, name, " is NULL: expected ", size, " elements");
}

void CheckPointers(const rh_raw_batch& batch) {
  CheckPointer("float_values", batch.float_values, batch.num_rows * batch.num_float_columns);
  CheckPointer("int_values", batch.int_values, batch.num_ints);
  CheckPointer("int_lengths", batch.int_lengths, batch.num_rows * batch.num_int_columns);
  CheckPointer("text_bytes", batch.text_bytes, batch.num_text_bytes);
  CheckPointer("text_sizes", batch.text_sizes, batch.num_texts);
  CheckPointer("text_lengths", batch.text_lengths, batch.num_rows * batch.num_text_columns);
}

void CheckFinite(const rh_raw_batch& batch) {
  const int64_t size = batch.num_rows * batch.num_float_columns;
  bool is_infinite = false;
  for (int64_t i = 0; i < size; ++i)
    is_infinite |= std::fabs(batch.float_values[i]) > std::numeric_limits<double>::max();
  if (!is_infinite) return;
  const double* first =
      std::find_if(batch.float_values, batch.float_values + size, [](double x) { return std::isinf(x); });
  const int64_t place = first - batch.float_values;
  Require(false, "float_values[", place / batch.num_float_columns, ", ", place % batch.num_float_columns, "] is ",
          *first, "; expected a finite number, or NaN where the value is missing");
}

struct Range {
  int64_t sum = 0;
  int32_t least = std::numeric_limits<int32_t>::max();
  int32_t most = std::numeric_limits<int32_t>::min();
};

Range RangeOf(const int32_t* elements, int64_t size) {
  Range range;
  for (int64_t i = 0; i < size; ++i) {
    range.sum += elements[i];
    range.least = std::min(range.least, elements[i]);
    range.most = std::max(range.most, elements[i]);
  }
  return range;
}

void CheckTextSizes(const rh_raw_batch& batch) {
  const Range sizes = RangeOf(batch.text_sizes, batch.num_texts);
  Require(sizes.least >= 1 && sizes.sum == batch.num_text_bytes, "text_bytes has ", batch.num_text_bytes,
          " bytes; expected as many as text_sizes add up to, ", sizes.sum, ", each of them at least 1");
}

// Refuses several values of a feature that is no list.
void CheckCrowding(const std::vector<Column>& columns, const int32_t* lengths, int64_t num_rows) {
  const auto num_columns = static_cast<int64_t>(columns.size());
  for (int64_t column = 0; column < num_columns; ++column) {
    if (columns[column].is_list) continue;
    int32_t most = 0;
    for (int64_t row = 0; row < num_rows; ++row) most = std::max(most, lengths[row * num_columns + column]);
    Require(most <= 1, "feature '", columns[column].name, "' has ", most, " values in a row; it takes at most one");
  }
}

// `name`: of the lengths; `values`: of what they count.
void CheckLengths(const char* name, const int32_t* lengths, int64_t num_rows, const std::vector<Column>& columns,
                  const char* values, int64_t num_values) {
  const Range range = RangeOf(lengths, num_rows * static_cast<int64_t>(columns.size()));
  Require(range.least >= 0 && range.sum == num_values, values, " has shape (", num_values,
          ",); expected one dimension and as many values as ", name, " add up to, ", range.sum,
          ", none of them negative");
  if (range.most > 1) CheckCrowding(columns, lengths, num_rows);
}

}  // namespace

void CheckBatch(const rh_raw_batch& batch, int64_t num_floats, const std::vector<Column>& ints,
                const std::vector<Column>& texts) {
  CheckSizes(batch);
  CheckColumns("float_values", batch.num_float_columns, num_floats);
  CheckColumns("int_lengths", batch.num_int_columns, static_cast<int64_t>(ints.size()));
  CheckColumns("text_lengths", batch.num_text_columns, static_cast<int64_t>(texts.size()));
  CheckPointers(batch);
  CheckFinite(batch);
  CheckTextSizes(batch);
  CheckLengths("int_lengths", batch.int_lengths, batch.num_rows, ints, "int_values", batch.num_ints);
  CheckLengths("text_lengths", batch.text_lengths, batch.num_rows, texts, "text_sizes", batch.num_texts);
}

}  // namespace rankhouse::transform
