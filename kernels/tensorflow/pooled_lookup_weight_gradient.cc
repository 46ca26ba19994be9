// The gradient of a pooled lookup's weights.
#include "tensorflow/lookup_attributes.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class PooledLookupWeightGradientOp : public tf::OpKernel {
 public:
  explicit PooledLookupWeightGradientOp(tf::OpKernelConstruction* construction)
      : OpKernel(construction), attributes_(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& grad = context->input(0);
    const int num_tables = attributes_.num_tables();
    std::vector<VariablePointer> variables(num_tables);
    for (int t = 0; t < num_tables; ++t) OP_REQUIRES_OK(context, FindVariable(context, 1 + t, &variables[t]));
    const std::vector<tf::tf_shared_lock> locks = LockForReading(variables);
    std::vector<rh_table> tables;
    OP_REQUIRES_OK(context, attributes_.TablesOf(variables, &tables));
    rh_lookup lookup;
    OP_REQUIRES_OK(context, attributes_.MakeLookup(tables, context, 1 + num_tables, &lookup));
    OP_REQUIRES_OK(context, attributes_.CheckGradient(grad, lookup));

    tf::Tensor* weight_grad = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({lookup.num_ids}), &weight_grad));
    const Executor executor(context);
    const std::vector<rh_feature_rows> grad_rows = attributes_.FeatureRows(grad.flat<float>().data());
    float* const data = weight_grad->flat<float>().data();
    OP_REQUIRES_OK(context,
                   ToStatus(rh_pooled_lookup_weight_gradient(&lookup, grad_rows.data(), data, executor.get())));
  }

 private:
  const LookupAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("RankhousePooledLookupWeightGradient").Device(tf::DEVICE_CPU),
                        PooledLookupWeightGradientOp);

}  // namespace
}  // namespace rankhouse
