// The sum of the squares of several tensors.
#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class SquaredNormOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const int num_tables = context->num_inputs();
    std::vector<rh_sparse_gradient> gradients(num_tables);
    const std::vector<int64_t> dims(num_tables, 1);
    for (int t = 0; t < num_tables; ++t) {
      const tf::Tensor& rows = context->input(t);
      gradients[t].rows = const_cast<float*>(rows.flat<float>().data());
      gradients[t].num_rows = rows.NumElements();
    }
    tf::Tensor* squared_norm = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &squared_norm));
    const Executor executor(context);
    OP_REQUIRES_OK(context, ToStatus(rh_squared_norm(gradients.data(), dims.data(), num_tables,
                                                     squared_norm->flat<double>().data(), executor.get())));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseSquaredNorm").Device(tf::DEVICE_CPU), SquaredNormOp);

}  // namespace
}  // namespace rankhouse
