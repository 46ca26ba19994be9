// Pooling of rows that are a tensor, not a variable: what came from other ranks, or was read once for each unique id.
// And the gradient of its weights; that of its rows reads none, and is the one of variables
// (pooled_lookup_gradient.cc).
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/lookup_attributes.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

// What both ops do: they make a lookup in the rows [U, D], which are input number `first`, before the batch. Then
// Finish calls the library.
class RowsOp : public tf::OpKernel {
 public:
  RowsOp(tf::OpKernelConstruction* construction, int first)
      : OpKernel(construction), attributes_(construction), first_(first) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& rows = context->input(first_);
    std::vector<rh_table> tables = attributes_.Tables();
    OP_REQUIRES(context, tables.size() == 1 && rows.dims() == 2 && rows.dim_size(1) == tables[0].dim,
                tf::errors::InvalidArgument("rows have shape ", rows.shape().DebugString(), " for ", tables.size(),
                                            " tables: expected [U, D] for one table of width D"));
    // How many there are changes from call to call.
    tables[0].num_rows = rows.dim_size(0);
    tables[0].rows = rows.data();
    rh_lookup lookup;
    OP_REQUIRES_OK(context, attributes_.MakeLookup(tables, context, first_ + 1, &lookup));
    OP_REQUIRES_OK(context, Finish(context, lookup));
  }

 protected:
  virtual tf::Status Finish(tf::OpKernelContext* context, const rh_lookup& lookup) = 0;

  const LookupAttributes attributes_;

 private:
  const int first_;
};

class PoolRowsOp : public RowsOp {
 public:
  explicit PoolRowsOp(tf::OpKernelConstruction* construction) : RowsOp(construction, 0) {}

 protected:
  tf::Status Finish(tf::OpKernelContext* context, const rh_lookup& lookup) override {
    tf::Tensor* pooled = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tf::TensorShape({lookup.batch_size, attributes_.width}), &pooled));
    const Executor executor(context);
    const std::vector<rh_feature_rows> out = attributes_.FeatureRows(pooled->flat<float>().data());
    return ToStatus(rh_pooled_lookup(&lookup, out.data(), nullptr, executor.get()));
  }
};

class PoolRowsWeightGradientOp : public RowsOp {
 public:
  explicit PoolRowsWeightGradientOp(tf::OpKernelConstruction* construction) : RowsOp(construction, 1) {}

 protected:
  tf::Status Finish(tf::OpKernelContext* context, const rh_lookup& lookup) override {
    const tf::Tensor& grad = context->input(0);
    TF_RETURN_IF_ERROR(attributes_.CheckGradient(grad, lookup));
    tf::Tensor* weight_grad = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tf::TensorShape({lookup.num_ids}), &weight_grad));
    const Executor executor(context);
    const std::vector<rh_feature_rows> grad_rows = attributes_.FeatureRows(grad.flat<float>().data());
    float* const data = weight_grad->flat<float>().data();
    return ToStatus(rh_pooled_lookup_weight_gradient(&lookup, grad_rows.data(), data, executor.get()));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhousePoolRows").Device(tf::DEVICE_CPU), PoolRowsOp);
REGISTER_KERNEL_BUILDER(Name("RankhousePoolRowsWeightGradient").Device(tf::DEVICE_CPU), PoolRowsWeightGradientOp);

}  // namespace
}  // namespace rankhouse
