// DLRM's dot interaction and its backward.
#include <algorithm>
#include <limits>

#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

// What both ops have in common: the attributes, and the interaction that they and the inputs make.
class InteractionOp : public tf::OpKernel {
 public:
  explicit InteractionOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("num_bottoms", &num_bottoms_));
    OP_REQUIRES_OK(construction, construction->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(construction, construction->GetAttr("self_interaction", &self_interaction_));
    OP_REQUIRES(construction, num_bottoms_ <= 1,
                tf::errors::InvalidArgument("there are ", num_bottoms_, " bottoms: expected 0 or 1"));
  }

 protected:
  bool has_bottom() const { return num_bottoms_ == 1; }

  // `first` is the number of the input bottom, or of embeddings where there is none.
  tf::Status MakeInteraction(tf::OpKernelContext* context, int first, rh_interaction* interaction) const {
    const tf::Tensor& embeddings = context->input(first + num_bottoms_);
    if (embeddings.dims() != 2 || embeddings.dim_size(1) % dim_ != 0) {
      return tf::errors::InvalidArgument("embeddings have shape ", embeddings.shape().DebugString(),
                                         ": expected [B, F * ", dim_, "]");
    }
    const tf::TensorShape bottom_shape({embeddings.dim_size(0), dim_});
    if (has_bottom() && context->input(first).shape() != bottom_shape) {
      return tf::errors::InvalidArgument("bottom has shape ", context->input(first).shape().DebugString(),
                                         ": expected ", bottom_shape.DebugString(), " beside embeddings of shape ",
                                         embeddings.shape().DebugString());
    }
    const int64_t num_embeddings =
        std::min<int64_t>(embeddings.dim_size(1) / dim_, std::numeric_limits<int32_t>::max());
    *interaction = {embeddings.dim_size(0), dim_, static_cast<int32_t>(num_embeddings), num_bottoms_,
                    self_interaction_};
    return tf::OkStatus();
  }

  const float* Bottom(tf::OpKernelContext* context, int first) const {
    return has_bottom() ? context->input(first).flat<float>().data() : nullptr;
  }
  const float* Embeddings(tf::OpKernelContext* context, int first) const {
    return context->input(first + num_bottoms_).flat<float>().data();
  }

 private:
  int num_bottoms_ = 0;
  int64_t dim_ = 1;
  bool self_interaction_ = false;
};

class DotInteractionOp : public InteractionOp {
 public:
  using InteractionOp::InteractionOp;

  void Compute(tf::OpKernelContext* context) override {
    rh_interaction interaction;
    OP_REQUIRES_OK(context, MakeInteraction(context, 0, &interaction));
    const int64_t width = rh_dot_interaction_width(&interaction);
    tf::Tensor* out = nullptr;
    // A width of -1 is for the call below to explain.
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, tf::TensorShape({interaction.batch_size, std::max<int64_t>(width, 0)}), &out));
    const Executor executor(context);
    OP_REQUIRES_OK(context, ToStatus(rh_dot_interaction(&interaction, Bottom(context, 0), Embeddings(context, 0),
                                                        out->flat<float>().data(), executor.get())));
  }
};

class DotInteractionGradientOp : public InteractionOp {
 public:
  using InteractionOp::InteractionOp;

  void Compute(tf::OpKernelContext* context) override {
    rh_interaction interaction;
    OP_REQUIRES_OK(context, MakeInteraction(context, 1, &interaction));
    const tf::Tensor& grad = context->input(0);
    const tf::TensorShape expected(
        {interaction.batch_size, std::max<int64_t>(rh_dot_interaction_width(&interaction), 0)});
    OP_REQUIRES(context, grad.shape() == expected,
                tf::errors::InvalidArgument("grad has shape ", grad.shape().DebugString(), ": expected ",
                                            expected.DebugString()));
    tf::Tensor* bottom_grad = nullptr;
    tf::Tensor* embeddings_grad = nullptr;
    if (has_bottom()) {
      OP_REQUIRES_OK(context, context->allocate_output(0, context->input(1).shape(), &bottom_grad));
    }
    const int last = has_bottom() ? 1 : 0;
    OP_REQUIRES_OK(context, context->allocate_output(last, context->input(1 + last).shape(), &embeddings_grad));
    const Executor executor(context);
    OP_REQUIRES_OK(context, ToStatus(rh_dot_interaction_gradient(
                                &interaction, Bottom(context, 1), Embeddings(context, 1), grad.flat<float>().data(),
                                bottom_grad == nullptr ? nullptr : bottom_grad->flat<float>().data(),
                                embeddings_grad->flat<float>().data(), executor.get())));
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseDotInteraction").Device(tf::DEVICE_CPU), DotInteractionOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseDotInteractionGradient").Device(tf::DEVICE_CPU), DotInteractionGradientOp);

}  // namespace
}  // namespace rankhouse
