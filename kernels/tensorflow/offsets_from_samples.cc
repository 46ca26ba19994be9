// The bags of a SparseTensor.
#include <limits>

#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class OffsetsFromSamplesOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& indices = context->input(0);
    OP_REQUIRES(
        context,
        indices.dims() == 2 && indices.dim_size(1) >= 1 && tf::TensorShapeUtils::IsScalar(context->input(1).shape()),
        tf::errors::InvalidArgument("indices have shape ", indices.shape().DebugString(), " and batch_size ",
                                    context->input(1).shape().DebugString(), ": expected [N, r] and []"));
    const int64_t batch_size = context->input(1).scalar<int64_t>()();
    OP_REQUIRES(context, 0 <= batch_size && batch_size <= std::numeric_limits<int32_t>::max(),
                tf::errors::InvalidArgument("batch_size is ", batch_size, ": expected 0 to 2^31 - 1"));
    tf::Tensor* offsets = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({batch_size + 1}), &offsets));
    OP_REQUIRES_OK(context,
                   ToStatus(rh_offsets_from_samples(indices.flat<int64_t>().data(), indices.dim_size(1),
                                                    indices.dim_size(0), batch_size, offsets->flat<int64_t>().data())));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseOffsetsFromSamples").Device(tf::DEVICE_CPU), OffsetsFromSamplesOp);

}  // namespace
}  // namespace rankhouse
