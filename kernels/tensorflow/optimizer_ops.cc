// The signatures of the TensorFlow ops that train. kernels/tf_ops/optimizers.py wraps them; nothing else calls them.
//
// `variables` are a table, its slots, and with the exact kind its last steps. What is not set of an rh_optimizer is 0.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/signatures.h"

namespace rankhouse {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;

}  // namespace

REGISTER_OP("RankhouseApply")
    .Input("variables: num_variables * resource")
    .Input("ids: int64")
    .Input("gradient: float")
    .RANKHOUSE_STEP.Attr("num_variables: int >= 1")
    .RANKHOUSE_OPTIMIZER.SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("rh_apply on variables.");

REGISTER_OP("RankhouseCatchUp")
    .Input("variables: num_variables * resource")
    .Input("ids: num_ids * int64")
    .RANKHOUSE_STEP.Attr("num_variables: int >= 1")
    .Attr("num_ids: int >= 0")
    .RANKHOUSE_OPTIMIZER.SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("rh_catch_up on variables: of one tensor of ids in any order, those that are rows; of none, all rows.");

REGISTER_OP("RankhousePooledLookupUpdate")
    .Input("grad: float")
    .Input("variables: num_variables * resource")
    .RANKHOUSE_BATCH.RANKHOUSE_STEP.Attr("num_variables: int >= 0")
    .RANKHOUSE_OPTIMIZER.SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("rh_pooled_lookup_update on the variables of all tables, table by table.");

REGISTER_OP("RankhouseSquaredNorm")
    .Input("rows: num_tables * float")
    .Output("squared_norm: double")
    .Attr("num_tables: int >= 0")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return tensorflow::OkStatus();
    })
    .Doc("rh_squared_norm of tensors of any shape.");

}  // namespace rankhouse
