// Pooling of rows that are a tensor, not a variable: what came from other ranks, or was read once for each unique id.
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/lookup_attributes.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class PoolRowsOp : public tf::OpKernel {
 public:
  explicit PoolRowsOp(tf::OpKernelConstruction* construction) : OpKernel(construction), attributes_(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& rows = context->input(0);
    std::vector<rh_table> tables = attributes_.Tables();
    OP_REQUIRES(context, tables.size() == 1 && rows.dims() == 2 && rows.dim_size(1) == tables[0].dim,
                tf::errors::InvalidArgument("rows have shape ", rows.shape().DebugString(), " for ", tables.size(),
                                            " tables: expected [U, D] for one table of width D"));
    // How many there are changes from call to call.
    tables[0].num_rows = rows.dim_size(0);
    tables[0].rows = rows.data();
    rh_lookup lookup;
    OP_REQUIRES_OK(context, attributes_.MakeLookup(tables, context, 1, &lookup));
    tf::Tensor* pooled = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, tf::TensorShape({lookup.batch_size, attributes_.width}), &pooled));
    const Executor executor(context);
    const std::vector<rh_feature_rows> out = attributes_.FeatureRows(pooled->flat<float>().data());
    OP_REQUIRES_OK(context, ToStatus(rh_pooled_lookup(&lookup, out.data(), nullptr, executor.get())));
  }

 private:
  const LookupAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("RankhousePoolRows").Device(tf::DEVICE_CPU), PoolRowsOp);

}  // namespace
}  // namespace rankhouse
