// Pooled lookup over TensorFlow variables.
#include "tensorflow/lookup_attributes.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class PooledLookupOp : public tf::OpKernel {
 public:
  explicit PooledLookupOp(tf::OpKernelConstruction* construction) : OpKernel(construction), attributes_(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    const int num_tables = attributes_.num_tables();
    std::vector<VariablePointer> variables(num_tables);
    for (int t = 0; t < num_tables; ++t) OP_REQUIRES_OK(context, FindVariable(context, t, &variables[t]));
    const std::vector<tf::tf_shared_lock> locks = LockForReading(variables);
    std::vector<rh_table> tables;
    OP_REQUIRES_OK(context, attributes_.TablesOf(variables, &tables));
    rh_lookup lookup;
    OP_REQUIRES_OK(context, attributes_.MakeLookup(tables, context, num_tables, &lookup));

    tf::Tensor* pooled = nullptr;
    tf::Tensor* bad_ids = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, tf::TensorShape({lookup.batch_size, attributes_.width}), &pooled));
    OP_REQUIRES_OK(context, context->allocate_output(1, tf::TensorShape({num_tables}), &bad_ids));
    const Executor executor(context);
    const std::vector<rh_feature_rows> out = attributes_.FeatureRows(pooled->flat<float>().data());
    std::vector<rh_bad_ids> bad(num_tables);
    OP_REQUIRES_OK(context, ToStatus(rh_pooled_lookup(&lookup, out.data(), bad.data(), executor.get())));
    for (int t = 0; t < num_tables; ++t) bad_ids->flat<int64_t>()(t) = bad[t].count;
  }

 private:
  const LookupAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("RankhousePooledLookup").Device(tf::DEVICE_CPU), PooledLookupOp);

}  // namespace
}  // namespace rankhouse
