// Huge pages under a variable that is there already. TensorFlow aligns its memory to 64 bytes, so every row that is a
// multiple of them wide begins on a cache line; its pages are as small as the C library's.
#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class AdviseHugePagesOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    VariablePointer variable;
    // Where the memory had other owners, it is copied here, and not later to where there is no advice.
    OP_REQUIRES_OK(context, FindVariable(context, 0, &variable));
    tf::mutex_lock lock(*variable->mu());
    tf::Tensor* const tensor = variable->tensor();
    OP_REQUIRES_OK(context, ToStatus(rh_advise_huge_pages(tensor->data(), tensor->TotalBytes())));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseAdviseHugePages").Device(tf::DEVICE_CPU), AdviseHugePagesOp);

}  // namespace
}  // namespace rankhouse
