// The backward of pooled lookup: one sparse gradient for each table.
#include "tensorflow/lookup_attributes.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class PooledLookupGradientOp : public tf::OpKernel {
 public:
  explicit PooledLookupGradientOp(tf::OpKernelConstruction* construction)
      : OpKernel(construction), attributes_(construction), tables_(attributes_.Tables()) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& grad = context->input(0);
    rh_lookup lookup;
    OP_REQUIRES_OK(context, attributes_.MakeLookup(tables_, context, 1, &lookup));
    OP_REQUIRES_OK(context, attributes_.CheckGradient(grad, lookup));

    const size_t num_tables = tables_.size();
    std::vector<int64_t> capacity(num_tables);
    OP_REQUIRES_OK(context, ToStatus(rh_gradient_capacity(&lookup, capacity.data())));
    std::vector<tf::Tensor> ids(num_tables);
    std::vector<tf::Tensor> rows(num_tables);
    std::vector<rh_sparse_gradient> gradients(num_tables);
    for (size_t t = 0; t < num_tables; ++t) {
      OP_REQUIRES_OK(context, context->allocate_temp(tf::DT_INT64, tf::TensorShape({capacity[t]}), &ids[t]));
      OP_REQUIRES_OK(context,
                     context->allocate_temp(tf::DT_FLOAT, tf::TensorShape({capacity[t], tables_[t].dim}), &rows[t]));
      gradients[t] = {ids[t].flat<int64_t>().data(), rows[t].flat<float>().data(), capacity[t], 0};
    }
    const Executor executor(context);
    const std::vector<rh_feature_rows> grad_rows = attributes_.FeatureRows(grad.flat<float>().data());
    OP_REQUIRES_OK(context,
                   ToStatus(rh_pooled_lookup_gradient(&lookup, grad_rows.data(), gradients.data(), executor.get())));
    for (size_t t = 0; t < num_tables; ++t) {
      // A slice shares the memory: nothing is copied, and rows that were not needed were never touched.
      context->set_output(t, ids[t].Slice(0, gradients[t].num_rows));
      context->set_output(num_tables + t, rows[t].Slice(0, gradients[t].num_rows));
    }
  }

 private:
  const LookupAttributes attributes_;
  const std::vector<rh_table> tables_;
};

REGISTER_KERNEL_BUILDER(Name("RankhousePooledLookupGradient").Device(tf::DEVICE_CPU), PooledLookupGradientOp);

}  // namespace
}  // namespace rankhouse
