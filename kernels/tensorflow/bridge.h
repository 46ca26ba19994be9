// Between TensorFlow and the C interface: statuses, threads, scratch memory and variables. The ops in this folder use
// only this and lookup_attributes.h.
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

// How a call spreads its work: over TensorFlow's own threads, and with scratch memory that calls hand on to each other.
// There are as many scratches as calls ever ran at the same time.
class Executor {
 public:
  explicit Executor(tensorflow::OpKernelContext* context);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const rh_executor* get() const { return &executor_; }

 private:
  rh_executor executor_;
};

using VariablePointer = tensorflow::core::RefCountPtr<tensorflow::Var>;

// Finds the variable of a resource input, and makes it safe to read and write its rows in place.
tensorflow::Status FindVariable(tensorflow::OpKernelContext* context, int input, VariablePointer* variable);

// Checks that a variable holds [num_rows, width] of `type`. The caller holds the variable's lock.
tensorflow::Status CheckVariable(tensorflow::Var* variable, int64_t num_rows, int64_t width,
                                 tensorflow::DataType type = tensorflow::DT_FLOAT);

// The variables' locks for reading: taken in the order of addresses (TensorFlow's rule), each once.
std::vector<tensorflow::tf_shared_lock> LockForReading(const std::vector<VariablePointer>& variables);

// The variables' locks for writing, in the same order. A variable that is there twice is refused.
tensorflow::Status LockForWriting(const std::vector<VariablePointer>& variables,
                                  std::vector<tensorflow::mutex_lock>* locks);

}  // namespace rankhouse

#endif  // RANKHOUSE_TENSORFLOW_BRIDGE_H_
