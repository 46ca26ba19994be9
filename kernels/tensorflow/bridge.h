// Between TensorFlow and the C interface: statuses, threads and variables. The ops in this folder use only this.
//
// TensorFlow's headers are included in this folder and nowhere else.
#ifndef RANKHOUSE_TENSORFLOW_BRIDGE_H_
#define RANKHOUSE_TENSORFLOW_BRIDGE_H_

// Eigen asks for it before any of its headers.
#define EIGEN_USE_THREADS

#include <cstdint>
#include <vector>

#include "rankhouse/kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace rankhouse {

// Turns the status of a function of the C interface, and this thread's message, into TensorFlow's.
//
// A bad id becomes InvalidArgument and not OutOfRange, which Keras takes for the end of the data and ends the epoch on.
tensorflow::Status ToStatus(int status);

// Runs a call's work on TensorFlow's own threads.
rh_executor ExecutorOf(tensorflow::OpKernelContext* context);

// The attributes that name what is looked up, as ops of this folder have them: num_tables, table_rows, table_dims,
// feature_tables, combiners. Immutable after construction.
struct LookupAttributes {
  explicit LookupAttributes(tensorflow::OpKernelConstruction* construction);

  // The lookup of a call: `ids` [N], `offsets` [F * B + 1]. `tables` [T] must outlive it. Sets the batch size from
  // offsets.
  tensorflow::Status MakeLookup(const std::vector<rh_table>& tables, const tensorflow::Tensor& ids,
                                const tensorflow::Tensor& offsets, rh_lookup* lookup) const;

  // Tables with their shapes and without rows.
  std::vector<rh_table> Shapes() const;

  int64_t width() const;

  // Features side by side in a matrix [B, width()].
  std::vector<rh_feature_rows> FeatureRows(float* matrix) const;

  std::vector<int64_t> table_rows;
  std::vector<int64_t> table_dims;
  std::vector<int32_t> feature_tables;
  std::vector<int32_t> combiners;
};

// Finds the variable of a resource input, and makes it safe to read and write its rows in place.
tensorflow::Status FindVariable(tensorflow::OpKernelContext* context, int input,
                                tensorflow::core::RefCountPtr<tensorflow::Var>* variable);

// Checks that a variable holds float32 [num_rows, dim]. The caller holds the variable's lock.
tensorflow::Status CheckVariable(tensorflow::Var* variable, int64_t num_rows, int64_t dim);

}  // namespace rankhouse

#endif  // RANKHOUSE_TENSORFLOW_BRIDGE_H_
