// The signatures of the TensorFlow ops. kernels/tf_ops.py wraps them; nothing else calls them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace rankhouse {
namespace {

using tensorflow::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// B from offsets [F * B + 1], where it is known.
Status BatchSize(InferenceContext* context, int offsets_input, int64_t num_features, DimensionHandle* batch_size) {
  ShapeHandle offsets;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(offsets_input), 1, &offsets));
  *batch_size = context->UnknownDim();
  if (!context->ValueKnown(context->Dim(offsets, 0)) || num_features == 0) return tensorflow::OkStatus();
  DimensionHandle num_bags;
  TF_RETURN_IF_ERROR(context->Subtract(context->Dim(offsets, 0), 1, &num_bags));
  return context->Divide(num_bags, num_features, /*evenly_divisible=*/true, batch_size);
}

Status PooledLookupShape(InferenceContext* context) {
  std::vector<int64_t> table_dims;
  std::vector<int32_t> feature_tables;
  TF_RETURN_IF_ERROR(context->GetAttr("table_dims", &table_dims));
  TF_RETURN_IF_ERROR(context->GetAttr("feature_tables", &feature_tables));
  int64_t width = 0;
  for (const int32_t table : feature_tables) {
    if (table < 0 || table >= static_cast<int64_t>(table_dims.size())) {
      return tensorflow::errors::InvalidArgument("feature_tables names table ", table, ", but there are ",
                                                 table_dims.size());
    }
    width += table_dims[table];
  }
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(context->num_inputs() - 2), 1, &ids));
  DimensionHandle batch_size;
  TF_RETURN_IF_ERROR(BatchSize(context, context->num_inputs() - 1, feature_tables.size(), &batch_size));
  context->set_output(0, context->Matrix(batch_size, width));
  return tensorflow::OkStatus();
}

Status PooledLookupGradientShape(InferenceContext* context) {
  std::vector<int64_t> table_dims;
  TF_RETURN_IF_ERROR(context->GetAttr("table_dims", &table_dims));
  const int num_tables = static_cast<int>(table_dims.size());
  for (int t = 0; t < num_tables; ++t) {
    const DimensionHandle num_rows = context->UnknownDim();
    context->set_output(t, context->Vector(num_rows));
    context->set_output(num_tables + t, context->Matrix(num_rows, table_dims[t]));
  }
  return tensorflow::OkStatus();
}

}  // namespace

REGISTER_OP("RankhousePooledLookup")
    .Input("tables: num_tables * resource")
    .Input("ids: int64")
    .Input("offsets: int64")
    .Output("pooled: float")
    .Attr("num_tables: int >= 0")
    .Attr("table_rows: list(int) >= 0")
    .Attr("table_dims: list(int) >= 0")
    .Attr("feature_tables: list(int) >= 0")
    .Attr("combiners: list(int) >= 0")
    .SetIsStateful()
    .SetShapeFn(PooledLookupShape)
    .Doc("rh_pooled_lookup over variables.");

REGISTER_OP("RankhousePooledLookupGradient")
    .Input("grad: float")
    .Input("ids: int64")
    .Input("offsets: int64")
    .Output("unique_ids: num_tables * int64")
    .Output("rows: num_tables * float")
    .Attr("num_tables: int >= 0")
    .Attr("table_rows: list(int) >= 0")
    .Attr("table_dims: list(int) >= 0")
    .Attr("feature_tables: list(int) >= 0")
    .Attr("combiners: list(int) >= 0")
    .SetShapeFn(PooledLookupGradientShape)
    .Doc("rh_pooled_lookup_gradient.");

REGISTER_OP("RankhouseApplySgd")
    .Input("variable: resource")
    .Input("ids: int64")
    .Input("gradient: float")
    .Input("learning_rate: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("rh_apply_sgd on a variable.");

REGISTER_OP("RankhouseApplyAdagrad")
    .Input("variable: resource")
    .Input("accumulator: resource")
    .Input("ids: int64")
    .Input("gradient: float")
    .Input("learning_rate: float")
    .Attr("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("rh_apply_adagrad on a variable and its accumulator.");

}  // namespace rankhouse
