// The backward of pooled lookup and the step of the optimizer in one pass over TensorFlow variables.
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/lookup_attributes.h"
#include "tensorflow/trained_variables.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class PooledLookupUpdateOp : public tf::OpKernel {
 public:
  explicit PooledLookupUpdateOp(tf::OpKernelConstruction* construction)
      : OpKernel(construction), lookup_(construction), optimizer_(construction), tables_(lookup_.Tables()) {
    if (!construction->status().ok()) return;
    OP_REQUIRES_OK(construction, construction->GetAttr("num_variables", &num_variables_));
    const int expected = lookup_.num_tables() * optimizer_.num_variables();
    OP_REQUIRES(construction, num_variables_ == expected,
                tf::errors::InvalidArgument("there are ", num_variables_, " variables: ", lookup_.num_tables(),
                                            " tables with their slots and last steps need ", expected));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& grad = context->input(0);
    rh_lookup lookup;
    OP_REQUIRES_OK(context, lookup_.MakeLookup(tables_, context, 1 + num_variables_, &lookup));
    OP_REQUIRES_OK(context, lookup_.CheckGradient(grad, lookup));
    rh_optimizer optimizer;
    OP_REQUIRES_OK(context, optimizer_.MakeOptimizer(context, context->num_inputs() - 4, &optimizer));
    std::vector<VariablePointer> variables(num_variables_);
    for (int v = 0; v < num_variables_; ++v) OP_REQUIRES_OK(context, FindVariable(context, 1 + v, &variables[v]));
    std::vector<tf::mutex_lock> locks;
    OP_REQUIRES_OK(context, LockForWriting(variables, &locks));
    std::vector<rh_trained_table> trained(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      OP_REQUIRES_OK(context, optimizer_.MakeTable(&variables[t * optimizer_.num_variables()], &trained[t]));
    }
    const std::vector<rh_optimizer> optimizers(tables_.size(), optimizer);
    const std::vector<rh_feature_rows> grad_rows = lookup_.FeatureRows(grad.flat<float>().data());
    const Executor executor(context);
    OP_REQUIRES_OK(context, ToStatus(rh_pooled_lookup_update(&lookup, grad_rows.data(), optimizers.data(),
                                                             trained.data(), executor.get())));
  }

 private:
  const LookupAttributes lookup_;
  const OptimizerAttributes optimizer_;
  const std::vector<rh_table> tables_;
  int num_variables_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("RankhousePooledLookupUpdate").Device(tf::DEVICE_CPU), PooledLookupUpdateOp);

}  // namespace
}  // namespace rankhouse
