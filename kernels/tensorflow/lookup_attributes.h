// What is looked up, as the attributes and inputs of the ops over rh_lookup say it.
#ifndef RANKHOUSE_TENSORFLOW_LOOKUP_ATTRIBUTES_H_
#define RANKHOUSE_TENSORFLOW_LOOKUP_ATTRIBUTES_H_

#include "tensorflow/bridge.h"

namespace rankhouse {

// Immutable after construction; what contradicts itself has been refused by then. An attribute is called as its field.
struct LookupAttributes {
  explicit LookupAttributes(tensorflow::OpKernelConstruction* construction);

  // The lookup of a call, from the inputs ids [N], offsets [F * B + 1] if num_offsets is 1 and weights [N] if
  // num_weights is, of which the first is input number `first`. `tables` [T] must outlive it.
  tensorflow::Status MakeLookup(const std::vector<rh_table>& tables, tensorflow::OpKernelContext* context, int first,
                                rh_lookup* lookup) const;

  // Tables with their shapes and policies, and without rows.
  std::vector<rh_table> Tables() const;

  // Tables with their rows. The caller holds the variables' locks.
  tensorflow::Status TablesOf(const std::vector<VariablePointer>& variables, std::vector<rh_table>* tables) const;

  // Checks that the gradient of the result, input number 0, has the result's shape [B, width].
  tensorflow::Status CheckGradient(const tensorflow::Tensor& grad, const rh_lookup& lookup) const;

  // Features side by side in a matrix [B, width].
  std::vector<rh_feature_rows> FeatureRows(const float* matrix) const;

  int num_tables() const { return static_cast<int>(table_rows.size()); }

  std::vector<int64_t> table_rows;
  std::vector<int64_t> table_dims;
  std::vector<int32_t> table_types;     // an rh_row_type each
  std::vector<int32_t> out_of_range;    // an rh_out_of_range each
  std::vector<int64_t> oov_rows;        // read where out_of_range is RH_OOV_ROW
  std::vector<int32_t> feature_tables;  // of each feature
  std::vector<int32_t> combiners;
  std::vector<int32_t> hotness;  // of each feature; empty: there are offsets
  std::vector<int64_t> widths;   // of each feature's part of the result
  int64_t width = 0;             // their sum
  int num_offsets = 0;
  int num_weights = 0;
  int32_t weighting = 0;

 private:
  tensorflow::Status Read(tensorflow::OpKernelConstruction* construction);
};

}  // namespace rankhouse

#endif  // RANKHOUSE_TENSORFLOW_LOOKUP_ATTRIBUTES_H_
