// Optimizers on the touched rows of TensorFlow variables, in place.
#include <algorithm>

#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

// The inputs after the variables.
struct Gradient {
  const tf::Tensor& ids;
  const tf::Tensor& rows;
  const tf::Tensor& learning_rate;

  tf::Status Check() const {
    if (ids.dims() == 1 && rows.dims() == 2 && rows.dim_size(0) == ids.dim_size(0) &&
        learning_rate.NumElements() == 1) {
      return tf::OkStatus();
    }
    return tf::errors::InvalidArgument("gradient has ids of shape ", ids.shape().DebugString(), ", rows of shape ",
                                       rows.shape().DebugString(), " and learning_rate of shape ",
                                       learning_rate.shape().DebugString(), ": expected [U], [U, D] and []");
  }
};

// The update of a variable whose lock the caller holds.
tf::Status MakeUpdate(tf::Var* variable, const Gradient& gradient, rh_update* update) {
  TF_RETURN_IF_ERROR(gradient.Check());
  const int64_t num_rows = variable->tensor()->dims() == 2 ? variable->tensor()->dim_size(0) : -1;
  TF_RETURN_IF_ERROR(CheckVariable(variable, num_rows, gradient.rows.dim_size(1)));
  *update = {};
  update->table.rows = variable->tensor()->flat<float>().data();
  update->table.num_rows = num_rows;
  update->table.dim = gradient.rows.dim_size(1);
  update->ids = gradient.ids.flat<int64_t>().data();
  update->num_ids = gradient.ids.NumElements();
  update->gradient = gradient.rows.flat<float>().data();
  return tf::OkStatus();
}

class ApplySgdOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VariablePointer variable;
    OP_REQUIRES_OK(context, FindVariable(context, 0, &variable));
    tf::mutex_lock lock(*variable->mu());
    const Gradient gradient{context->input(1), context->input(2), context->input(3)};
    rh_update update;
    OP_REQUIRES_OK(context, MakeUpdate(variable.get(), gradient, &update));
    const Executor executor(context);
    rh_optimizer optimizer = {};
    optimizer.rule = RH_SGD;
    optimizer.learning_rate = gradient.learning_rate.flat<float>()(0);
    update.optimizer = &optimizer;
    OP_REQUIRES_OK(context, ToStatus(rh_apply(&update, 1, executor.get())));
  }
};

class ApplyAdagradOp : public tf::OpKernel {
 public:
  explicit ApplyAdagradOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &epsilon_));
  }

  void Compute(tf::OpKernelContext* context) override {
    VariablePointer variable;
    VariablePointer accumulator;
    OP_REQUIRES_OK(context, FindVariable(context, 0, &variable));
    OP_REQUIRES_OK(context, FindVariable(context, 1, &accumulator));
    OP_REQUIRES(context, variable.get() != accumulator.get(),
                tf::errors::InvalidArgument("variable and accumulator are the same variable"));
    // Both locks in the order of addresses, as everywhere in TensorFlow.
    tf::mutex_lock first(*std::min(variable->mu(), accumulator->mu()));
    tf::mutex_lock second(*std::max(variable->mu(), accumulator->mu()));
    const Gradient gradient{context->input(2), context->input(3), context->input(4)};
    rh_update update;
    OP_REQUIRES_OK(context, MakeUpdate(variable.get(), gradient, &update));
    OP_REQUIRES_OK(context, CheckVariable(accumulator.get(), update.table.num_rows, update.table.dim));
    update.table.slots[0] = accumulator->tensor()->flat<float>().data();
    const Executor executor(context);
    rh_optimizer optimizer = {};
    optimizer.rule = RH_ADAGRAD;
    optimizer.learning_rate = gradient.learning_rate.flat<float>()(0);
    optimizer.epsilon = epsilon_;
    update.optimizer = &optimizer;
    OP_REQUIRES_OK(context, ToStatus(rh_apply(&update, 1, executor.get())));
  }

 private:
  float epsilon_;
};

REGISTER_KERNEL_BUILDER(Name("RankhouseApplySgd").Device(tf::DEVICE_CPU), ApplySgdOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseApplyAdagrad").Device(tf::DEVICE_CPU), ApplyAdagradOp);

}  // namespace
}  // namespace rankhouse
