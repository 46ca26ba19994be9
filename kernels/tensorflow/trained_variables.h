// A table that is trained and its optimizer, as the attributes and inputs of the ops over rh_optimizer say it.
#ifndef RANKHOUSE_TENSORFLOW_TRAINED_VARIABLES_H_
#define RANKHOUSE_TENSORFLOW_TRAINED_VARIABLES_H_

#include "tensorflow/bridge.h"

namespace rankhouse {

// Immutable after construction. An attribute is called as the field of rh_optimizer.
class OptimizerAttributes {
 public:
  explicit OptimizerAttributes(tensorflow::OpKernelConstruction* construction);

  // The optimizer of a step, from the inputs learning_rate, step, gradient_scale and learning_rates, of which the first
  // is input number `first`. It points into the inputs.
  tensorflow::Status MakeOptimizer(tensorflow::OpKernelContext* context, int first, rh_optimizer* optimizer) const;

  // How many variables a table has: itself, its slots, and with RH_EXACT its last steps.
  int num_variables() const;

  // The table that these variables hold. The caller holds their locks.
  tensorflow::Status MakeTable(const VariablePointer* variables, rh_trained_table* table) const;

 private:
  rh_optimizer settings_ = {};
};

}  // namespace rankhouse

#endif  // RANKHOUSE_TENSORFLOW_TRAINED_VARIABLES_H_
