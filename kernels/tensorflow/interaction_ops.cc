// The signatures of the TensorFlow ops of the dot interaction. kernels/tf_ops/interaction.py wraps them; nothing else
// calls them.
#include "rankhouse/kernels.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rankhouse {
namespace {

using tensorflow::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Merges what bottom [B, D] and embeddings [B, F * D], inputs `first` and on, say: [B, W] and, for the gradients, both.
Status InteractionShapes(InferenceContext* context, int first, ShapeHandle* out, ShapeHandle* bottom,
                         ShapeHandle* embeddings) {
  int num_bottoms = 0;
  int64_t dim = 0;
  bool self_interaction = false;
  TF_RETURN_IF_ERROR(context->GetAttr("num_bottoms", &num_bottoms));
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(context->GetAttr("self_interaction", &self_interaction));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(first + num_bottoms), 2, embeddings));
  DimensionHandle batch_size = context->Dim(*embeddings, 0);
  if (num_bottoms == 1) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(first), 2, bottom));
    TF_RETURN_IF_ERROR(context->Merge(batch_size, context->Dim(*bottom, 0), &batch_size));
    *bottom = context->Matrix(batch_size, dim);
  }
  DimensionHandle embeddings_width = context->Dim(*embeddings, 1);
  DimensionHandle width = context->UnknownDim();
  if (context->ValueKnown(embeddings_width)) {
    DimensionHandle num_embeddings;
    TF_RETURN_IF_ERROR(context->Divide(embeddings_width, dim, /*evenly_divisible=*/true, &num_embeddings));
    const rh_interaction interaction = {0, dim, static_cast<int32_t>(context->Value(num_embeddings)), num_bottoms,
                                        self_interaction};
    const int64_t value = rh_dot_interaction_width(&interaction);
    if (value >= 0) width = context->MakeDim(value);
  }
  *embeddings = context->Matrix(batch_size, embeddings_width);
  *out = context->Matrix(batch_size, width);
  return tensorflow::OkStatus();
}

Status DotInteractionShape(InferenceContext* context) {
  ShapeHandle out, bottom, embeddings;
  TF_RETURN_IF_ERROR(InteractionShapes(context, 0, &out, &bottom, &embeddings));
  context->set_output(0, out);
  return tensorflow::OkStatus();
}

Status DotInteractionGradientShape(InferenceContext* context) {
  ShapeHandle grad, bottom, embeddings;
  TF_RETURN_IF_ERROR(InteractionShapes(context, 1, &grad, &bottom, &embeddings));
  TF_RETURN_IF_ERROR(context->Merge(grad, context->input(0), &grad));
  if (context->num_outputs() == 2) context->set_output(0, bottom);
  context->set_output(context->num_outputs() - 1, embeddings);
  return tensorflow::OkStatus();
}

}  // namespace

REGISTER_OP("RankhouseDotInteraction")
    .Input("bottom: num_bottoms * float")
    .Input("embeddings: float")
    .Output("out: float")
    .Attr("num_bottoms: int >= 0")
    .Attr("dim: int >= 1")
    .Attr("self_interaction: bool")
    .SetShapeFn(DotInteractionShape)
    .Doc("rh_dot_interaction.");

REGISTER_OP("RankhouseDotInteractionGradient")
    .Input("grad: float")
    .Input("bottom: num_bottoms * float")
    .Input("embeddings: float")
    .Output("bottom_grad: num_bottoms * float")
    .Output("embeddings_grad: float")
    .Attr("num_bottoms: int >= 0")
    .Attr("dim: int >= 1")
    .Attr("self_interaction: bool")
    .SetShapeFn(DotInteractionGradientShape)
    .Doc("rh_dot_interaction_gradient.");

}  // namespace rankhouse
