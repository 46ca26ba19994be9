// Raw values to the model's input.
#ifndef RANKHOUSE_TRANSFORM_COMPILED_TRANSFORM_H_
#define RANKHOUSE_TRANSFORM_COMPILED_TRANSFORM_H_

#include <string>
#include <vector>

#include "rankhouse/transform.h"
#include "transform/feature.h"
#include "transform/raw_batch.h"
#include "transform/vocabularies.h"

namespace rankhouse::transform {

// Immutable; any thread may use it.
class CompiledTransform {
 public:
  // folder: that of transform.json. layers: the vocabularies' tensor files, the oldest first; none: those of the
  // folder. Throws Error: RH_CORRUPT where a file is missing or malformed, or they do not fit each other.
  static CompiledTransform Open(const std::string& folder, const std::vector<std::string>& layers);

  rh_transform_shape shape() const;

  // Throws Error: RH_INVALID_ARGUMENT where the batch is bad.
  void Check(const rh_raw_batch& batch) const;

  // As rh_transform_apply. Throws Error: RH_INVALID_ARGUMENT.
  void Apply(const rh_raw_batch* batches, int64_t num_batches, rh_model_input* input,
             const rh_executor* executor) const;

 private:
  // Where a batch has the lengths of a categorical feature.
  struct Source {
    bool is_text;
    bool is_list;
    int64_t column;
  };
  struct Part;
  class Bags;

  CompiledTransform(const std::string& where, const std::vector<Feature>& features, Vocabularies vocabularies);

  int64_t FillBags(const rh_raw_batch* batches, int64_t num_batches, int64_t* offsets, int32_t* lengths) const;
  void FillParts(const rh_raw_batch* batches, int64_t num_batches, Part* parts) const;
  void ApplyDense(const Part& part, float* dense) const;
  // Return how many values were unknown.
  int64_t ApplyInts(const Part& part, const Bags& bags, int64_t* ids) const;
  int64_t ApplyTexts(const Part& part, const Bags& bags, int64_t* ids) const;

  std::vector<DenseSteps> dense_;
  std::vector<Column> ints_;
  std::vector<Column> texts_;
  std::vector<Source> sources_;  // of the categorical features in their order
  bool has_lists_ = false;
  Vocabularies vocabularies_;
};

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_COMPILED_TRANSFORM_H_
