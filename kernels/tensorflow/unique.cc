// Unique keys of a tensor.
#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class UniqueOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& keys = context->input(0);
    OP_REQUIRES(context, keys.dims() == 1,
                tf::errors::InvalidArgument("keys of shape ", keys.shape().DebugString(), ": expected [N]"));
    tf::Tensor unique, counts;
    tf::Tensor* inverse = nullptr;
    OP_REQUIRES_OK(context, context->allocate_temp(tf::DT_INT64, keys.shape(), &unique));
    OP_REQUIRES_OK(context, context->allocate_temp(tf::DT_INT64, keys.shape(), &counts));
    OP_REQUIRES_OK(context, context->allocate_output(1, keys.shape(), &inverse));
    int64_t num_unique = 0;
    const Executor executor(context);
    OP_REQUIRES_OK(context, ToStatus(rh_unique(keys.flat<int64_t>().data(), keys.NumElements(),
                                               unique.flat<int64_t>().data(), inverse->flat<int64_t>().data(),
                                               counts.flat<int64_t>().data(), &num_unique, executor.get())));
    context->set_output(0, unique.Slice(0, num_unique));
    context->set_output(2, counts.Slice(0, num_unique));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseUnique").Device(tf::DEVICE_CPU), UniqueOp);

}  // namespace
}  // namespace rankhouse
