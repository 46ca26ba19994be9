// The signatures of the TensorFlow ops that look rows up, and of their backward. kernels/tf_ops/lookup.py wraps them;
// nothing else calls them.
#include "rankhouse/kernels.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/signatures.h"

namespace rankhouse {
namespace {

using tensorflow::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// [B, E], with B where the inputs tell it. The first input after the tables, ids, is input number `first`.
Status PooledShape(InferenceContext* context, int first, ShapeHandle* pooled) {
  std::vector<int64_t> table_dims;
  std::vector<int32_t> feature_tables, combiners, hotness;
  int num_offsets = 0;
  int num_weights = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("table_dims", &table_dims));
  TF_RETURN_IF_ERROR(context->GetAttr("feature_tables", &feature_tables));
  TF_RETURN_IF_ERROR(context->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(context->GetAttr("hotness", &hotness));
  TF_RETURN_IF_ERROR(context->GetAttr("num_offsets", &num_offsets));
  TF_RETURN_IF_ERROR(context->GetAttr("num_weights", &num_weights));
  const size_t num_features = feature_tables.size();
  // The ops check all of this again and say more: here only what would be read out of bounds.
  if (combiners.size() != num_features || (num_offsets == 0 && hotness.size() != num_features)) {
    return tensorflow::errors::InvalidArgument("feature_tables, combiners and hotness have different lengths");
  }
  int64_t width = 0;
  int64_t per_sample = 0;
  for (size_t f = 0; f < num_features; ++f) {
    const int32_t table = feature_tables[f];
    if (table < 0 || table >= static_cast<int64_t>(table_dims.size())) {
      return tensorflow::errors::InvalidArgument("feature_tables names table ", table, ", but there are ",
                                                 table_dims.size());
    }
    if (num_offsets == 0) per_sample += hotness[f];
    width += table_dims[table] * (combiners[f] == RH_NONE && num_offsets == 0 ? hotness[f] : 1);
  }
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(first), 1, &ids));
  if (num_weights == 1) {
    TF_RETURN_IF_ERROR(context->Merge(ids, context->input(first + 1 + num_offsets), &ids));
  }
  DimensionHandle batch_size = context->UnknownDim();
  if (num_offsets == 1) {
    ShapeHandle offsets;
    TF_RETURN_IF_ERROR(context->WithRank(context->input(first + 1), 1, &offsets));
    if (context->ValueKnown(context->Dim(offsets, 0)) && num_features > 0) {
      DimensionHandle num_bags;
      TF_RETURN_IF_ERROR(context->Subtract(context->Dim(offsets, 0), 1, &num_bags));
      TF_RETURN_IF_ERROR(context->Divide(num_bags, num_features, /*evenly_divisible=*/true, &batch_size));
    }
  } else if (per_sample > 0) {
    TF_RETURN_IF_ERROR(context->Divide(context->Dim(ids, 0), per_sample, /*evenly_divisible=*/true, &batch_size));
  }
  *pooled = context->Matrix(batch_size, width < 0 ? context->UnknownDim() : context->MakeDim(width));
  return tensorflow::OkStatus();
}

Status PooledLookupShape(InferenceContext* context) {
  int num_tables = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("num_tables", &num_tables));
  ShapeHandle pooled;
  TF_RETURN_IF_ERROR(PooledShape(context, num_tables, &pooled));
  context->set_output(0, pooled);
  context->set_output(1, context->Vector(num_tables));
  return tensorflow::OkStatus();
}

Status PoolRowsShape(InferenceContext* context) {
  ShapeHandle pooled;
  TF_RETURN_IF_ERROR(PooledShape(context, 1, &pooled));
  context->set_output(0, pooled);
  return tensorflow::OkStatus();
}

Status PooledLookupGradientShape(InferenceContext* context) {
  ShapeHandle grad;
  TF_RETURN_IF_ERROR(PooledShape(context, 1, &grad));
  TF_RETURN_IF_ERROR(context->Merge(grad, context->input(0), &grad));
  std::vector<int64_t> table_dims;
  TF_RETURN_IF_ERROR(context->GetAttr("table_dims", &table_dims));
  const int num_tables = static_cast<int>(table_dims.size());
  if (context->num_outputs() != 2 * num_tables) {
    return tensorflow::errors::InvalidArgument("there are ", num_tables, " table_dims: expected one for each table");
  }
  for (int t = 0; t < num_tables; ++t) {
    const DimensionHandle num_rows = context->UnknownDim();
    context->set_output(t, context->Vector(num_rows));
    context->set_output(num_tables + t, context->Matrix(num_rows, table_dims[t]));
  }
  return tensorflow::OkStatus();
}

// [N]; the ids are input number `first`.
Status WeightGradientShape(InferenceContext* context, int first) {
  ShapeHandle grad;
  TF_RETURN_IF_ERROR(PooledShape(context, first, &grad));
  TF_RETURN_IF_ERROR(context->Merge(grad, context->input(0), &grad));
  context->set_output(0, context->input(first));
  return tensorflow::OkStatus();
}

Status PooledLookupWeightGradientShape(InferenceContext* context) {
  int num_tables = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("num_tables", &num_tables));
  return WeightGradientShape(context, 1 + num_tables);
}

Status PoolRowsWeightGradientShape(InferenceContext* context) { return WeightGradientShape(context, 2); }

Status OffsetsFromLengthsShape(InferenceContext* context) {
  DimensionHandle num_bags = context->MakeDim(1);
  for (int d = 0; context->RankKnown(context->input(0)) && d < context->Rank(context->input(0)); ++d) {
    TF_RETURN_IF_ERROR(context->Multiply(num_bags, context->Dim(context->input(0), d), &num_bags));
  }
  if (!context->RankKnown(context->input(0))) num_bags = context->UnknownDim();
  TF_RETURN_IF_ERROR(context->Add(num_bags, 1, &num_bags));
  context->set_output(0, context->Vector(num_bags));
  return tensorflow::OkStatus();
}

Status OffsetsFromSamplesShape(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &unused));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &unused));
  DimensionHandle batch_size;
  TF_RETURN_IF_ERROR(context->MakeDimForScalarInput(1, &batch_size));
  TF_RETURN_IF_ERROR(context->Add(batch_size, 1, &batch_size));
  context->set_output(0, context->Vector(batch_size));
  return tensorflow::OkStatus();
}

}  // namespace

// None is stateful: those that read variables are known to TensorFlow as such by kernels/tf_ops/lookup.py.
REGISTER_OP("RankhousePooledLookup")
    .Input("tables: num_tables * resource")
    .RANKHOUSE_BATCH.Output("pooled: float")
    .Output("bad_ids: int64")
    .SetShapeFn(PooledLookupShape)
    .Doc("rh_pooled_lookup over variables.");

REGISTER_OP("RankhousePoolRows")
    .Input("rows: float")
    .RANKHOUSE_BATCH.Output("pooled: float")
    .SetShapeFn(PoolRowsShape)
    .Doc("rh_pooled_lookup over a tensor, which is the one table: it may have fewer rows than table_rows says.");

REGISTER_OP("RankhousePoolRowsWeightGradient")
    .Input("grad: float")
    .Input("rows: float")
    .RANKHOUSE_BATCH.Output("weight_grad: float")
    .SetShapeFn(PoolRowsWeightGradientShape)
    .Doc("rh_pooled_lookup_weight_gradient over a tensor, as RankhousePoolRows.");

REGISTER_OP("RankhousePooledLookupGradient")
    .Input("grad: float")
    .RANKHOUSE_BATCH.Output("unique_ids: num_tables * int64")
    .Output("rows: num_tables * float")
    .SetShapeFn(PooledLookupGradientShape)
    .Doc("rh_pooled_lookup_gradient.");

REGISTER_OP("RankhousePooledLookupWeightGradient")
    .Input("grad: float")
    .Input("tables: num_tables * resource")
    .RANKHOUSE_BATCH.Output("weight_grad: float")
    .SetShapeFn(PooledLookupWeightGradientShape)
    .Doc("rh_pooled_lookup_weight_gradient over variables.");

REGISTER_OP("RankhouseOffsetsFromLengths")
    .Input("lengths: int64")
    .Output("offsets: int64")
    .SetShapeFn(OffsetsFromLengthsShape)
    .Doc("Where the bags of lengths of any shape, one after the other, begin, and where the last one ends.");

REGISTER_OP("RankhouseOffsetsFromSamples")
    .Input("indices: int64")
    .Input("batch_size: int64")
    .Output("offsets: int64")
    .SetShapeFn(OffsetsFromSamplesShape)
    .Doc("rh_offsets_from_samples of the indices [N, r] of a SparseTensor: the first column is the sample.");

REGISTER_OP("RankhouseAdviseHugePages")
    .Input("variable: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("rh_advise_huge_pages on the memory of a variable.");

}  // namespace rankhouse
