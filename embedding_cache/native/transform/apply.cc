// How batches are transformed: first where each bag of ids begins, then parts of some rows, each by one thread.
#include <algorithm>
#include <numeric>

#include "core/status.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "transform/compiled_transform.h"
#include "transform/dense.h"

namespace rankhouse::transform {
namespace {

constexpr int64_t kPartRows = kMaxDenseRows;

// About how many cycles a value takes.
constexpr int64_t kDenseCycles = 10;
constexpr int64_t kIdCycles = 100;

int64_t SizeOf(const std::vector<Column>& columns) { return static_cast<int64_t>(columns.size()); }

int64_t NumParts(const rh_raw_batch& batch) { return (batch.num_rows + kPartRows - 1) / kPartRows; }

void RequireRoom(const rh_model_input& input, int64_t num_dense) {
  Require(input.dense != nullptr || num_dense == 0, "dense is NULL: expected room for ", num_dense, " numbers");
  Require(input.ids_capacity >= input.num_ids && (input.ids != nullptr || input.num_ids == 0), "ids has room for ",
          input.ids == nullptr ? 0 : input.ids_capacity, " ids: expected room for ", input.num_ids);
}

}  // namespace

// Some rows of a batch: a unit of work.
struct CompiledTransform::Part {
  const rh_raw_batch* batch;
  int64_t row_begin, row_end;                 // in the batch
  int64_t first_sample;                       // the number of row_begin among the rows of all batches
  int64_t first_int, first_text, first_byte;  // in the batch's arrays
  int64_t num_unknown;                        // values, once they have been looked up

  int64_t num_rows() const { return row_end - row_begin; }
};

// Where each bag of ids begins.
class CompiledTransform::Bags {
 public:
  // offsets: NULL where every bag has one id.
  Bags(const int64_t* offsets, int64_t num_samples) : offsets_(offsets), num_samples_(num_samples) {}

  int64_t begin(int64_t feature, int64_t sample) const {
    const int64_t bag = feature * num_samples_ + sample;
    return offsets_ == nullptr ? bag : offsets_[bag];
  }

 private:
  const int64_t* const offsets_;
  const int64_t num_samples_;
};

void CompiledTransform::Check(const rh_raw_batch& batch) const {
  CheckBatch(batch, static_cast<int64_t>(dense_.size()), ints_, texts_);
}

void CompiledTransform::Apply(const rh_raw_batch* batches, int64_t num_batches, rh_model_input* input,
                              const rh_executor* executor) const {
  int64_t num_samples = 0, num_parts = 0;
  for (int64_t n = 0; n < num_batches; ++n) {
    Check(batches[n]);
    num_samples += batches[n].num_rows;
    num_parts += NumParts(batches[n]);
  }
  Scratch scratch(executor);
  int64_t* offsets = input->offsets;
  const int64_t num_bags = num_samples * static_cast<int64_t>(sources_.size());
  if (has_lists_ && offsets == nullptr) offsets = scratch.Take<int64_t>(num_bags + 1);
  input->num_ids = FillBags(batches, num_batches, offsets, input->lengths);
  RequireRoom(*input, num_samples * static_cast<int64_t>(dense_.size()));
  Part* parts = scratch.Take<Part>(num_parts);
  FillParts(batches, num_batches, parts);
  const Bags bags(has_lists_ ? offsets : nullptr, num_samples);
  const int64_t num_values = num_samples * static_cast<int64_t>(dense_.size()) * kDenseCycles;
  const int64_t cycles = num_values + input->num_ids * kIdCycles;
  ParallelFor(executor, num_parts, cycles / std::max<int64_t>(1, num_parts), [&](int64_t begin, int64_t end) {
    for (Part* part = parts + begin; part < parts + end; ++part) {
      ApplyDense(*part, input->dense);
      part->num_unknown = ApplyInts(*part, bags, input->ids) + ApplyTexts(*part, bags, input->ids);
    }
  });
  if (input->num_unknown == nullptr) return;
  std::fill_n(input->num_unknown, num_batches, 0);
  for (const Part* part = parts; part < parts + num_parts; ++part) {
    input->num_unknown[part->batch - batches] += part->num_unknown;
  }
}

// Returns how many ids there are. offsets and lengths: NULL where they are not wanted; where there are lists, offsets
// are.
int64_t CompiledTransform::FillBags(const rh_raw_batch* batches, int64_t num_batches, int64_t* offsets,
                                    int32_t* lengths) const {
  int64_t num_samples = 0;
  for (int64_t n = 0; n < num_batches; ++n) num_samples += batches[n].num_rows;
  const int64_t num_bags = num_samples * static_cast<int64_t>(sources_.size());
  if (!has_lists_) {
    if (offsets != nullptr) std::iota(offsets, offsets + num_bags + 1, int64_t{0});
    if (lengths != nullptr) std::fill_n(lengths, num_bags, 1);
    return num_bags;
  }
  int64_t num_ids = 0;
  for (const Source& source : sources_) {
    for (int64_t n = 0; n < num_batches; ++n) {
      const int32_t* own = (source.is_text ? batches[n].text_lengths : batches[n].int_lengths) + source.column;
      const int64_t stride = SizeOf(source.is_text ? texts_ : ints_);
      for (int64_t row = 0; row < batches[n].num_rows; ++row) {
        const int32_t length = source.is_list ? own[row * stride] : 1;
        *offsets++ = num_ids;
        if (lengths != nullptr) *lengths++ = length;
        num_ids += length;
      }
    }
  }
  *offsets = num_ids;
  return num_ids;
}

void CompiledTransform::FillParts(const rh_raw_batch* batches, int64_t num_batches, Part* parts) const {
  int64_t num_samples = 0;
  for (const rh_raw_batch* batch = batches; batch < batches + num_batches; ++batch) {
    Part next = {batch, 0, 0, num_samples, 0, 0, 0, 0};
    while (next.row_end < batch->num_rows) {
      next.row_end = std::min(batch->num_rows, next.row_begin + kPartRows);
      *parts++ = next;
      const auto sum = [&](const int32_t* lengths, int64_t columns) {
        return std::accumulate(lengths + next.row_begin * columns, lengths + next.row_end * columns, int64_t{0});
      };
      const int64_t num_texts = sum(batch->text_lengths, SizeOf(texts_));
      const int32_t* sizes = batch->text_sizes + next.first_text;
      next.first_byte = std::accumulate(sizes, sizes + num_texts, next.first_byte);
      next.first_text += num_texts;
      next.first_int += sum(batch->int_lengths, SizeOf(ints_));
      next.first_sample += next.num_rows();
      next.row_begin = next.row_end;
    }
    num_samples += batch->num_rows;
  }
}

void CompiledTransform::ApplyDense(const Part& part, float* dense) const {
  const auto num_columns = static_cast<int64_t>(dense_.size());
  const double* values = part.batch->float_values + part.row_begin * num_columns;
  float* out = dense + part.first_sample * num_columns;
  for (int64_t column = 0; column < num_columns; ++column) {
    ApplySteps(dense_[column], values + column, part.num_rows(), num_columns, out + column);
  }
}

// Both go through a part feature by feature: ids are written one after the other, where row by row there would be as
// many places at once as features, which lie in the same lines of the cache where B is a power of two.

int64_t CompiledTransform::ApplyInts(const Part& part, const Bags& bags, int64_t* ids) const {
  const int64_t num_columns = SizeOf(ints_);
  const int32_t* const lengths = part.batch->int_lengths + part.row_begin * num_columns;
  int64_t next_value[kPartRows];
  int64_t num_values = part.first_int, num_unknown = 0;
  for (int64_t row = 0; row < part.num_rows(); ++row) {
    next_value[row] = num_values;
    num_values = std::accumulate(lengths + row * num_columns, lengths + (row + 1) * num_columns, num_values);
  }
  for (int64_t number = 0; number < num_columns; ++number) {
    const Column& column = ints_[number];
    int64_t* const own = ids + bags.begin(column.feature, part.first_sample);
    int64_t* end = own;
    bool lacks_values = false;
    for (int64_t row = 0; row < part.num_rows(); ++row) {
      const int32_t length = lengths[row * num_columns + number];
      for (int32_t i = 0; i < length; ++i) *end++ = part.batch->int_values[next_value[row]++];
      if (length == 0 && !column.is_list) {
        *end++ = 0;
        lacks_values = true;
      }
    }
    vocabularies_.FindInts(column.table, own, end - own);
    for (int64_t row = 0; lacks_values && row < part.num_rows(); ++row) {
      if (lengths[row * num_columns + number] == 0) own[row] = kMissingId;
    }
    num_unknown += std::count(own, end, kUnknownId);
  }
  return num_unknown;
}

int64_t CompiledTransform::ApplyTexts(const Part& part, const Bags& bags, int64_t* ids) const {
  const int64_t num_columns = SizeOf(texts_);
  if (num_columns == 0) return 0;
  const int32_t* const lengths = part.batch->text_lengths + part.row_begin * num_columns;
  const int32_t* next_size[kPartRows];
  const uint8_t* next_byte[kPartRows];
  const int32_t* size = part.batch->text_sizes + part.first_text;
  const uint8_t* byte = part.batch->text_bytes + part.first_byte;
  for (int64_t row = 0; row < part.num_rows(); ++row) {
    next_size[row] = size;
    next_byte[row] = byte;
    size = std::accumulate(lengths + row * num_columns, lengths + (row + 1) * num_columns, size);
    byte = std::accumulate(next_size[row], size, byte);
  }
  Text texts[kMaxTexts] = {};
  int64_t* targets[kMaxTexts];
  int64_t found[kMaxTexts];
  int64_t num_texts = 0, num_unknown = 0;
  const auto find_all = [&] {
    vocabularies_.FindTexts(texts, num_texts, found);
    for (int64_t i = 0; i < num_texts; ++i) *targets[i] = found[i];
    num_unknown += std::count(found, found + num_texts, kUnknownId);
    num_texts = 0;
  };
  for (int64_t number = 0; number < num_columns; ++number) {
    const Column& column = texts_[number];
    int64_t* id = ids + bags.begin(column.feature, part.first_sample);
    for (int64_t row = 0; row < part.num_rows(); ++row) {
      const int32_t length = lengths[row * num_columns + number];
      if (length == 0 && !column.is_list) *id++ = kMissingId;
      for (int32_t i = 0; i < length; ++i) {
        const int32_t bytes = *next_size[row]++;
        texts[num_texts] = {next_byte[row], bytes, column.table, HashOf(next_byte[row], bytes, column.table)};
        targets[num_texts] = id++;
        next_byte[row] += bytes;
        if (++num_texts == kMaxTexts) find_all();
      }
    }
  }
  find_all();
  return num_unknown;
}

}  // namespace rankhouse::transform
