// The signatures of the TensorFlow ops that update rows. kernels/tf_ops/optimizers.py wraps them; nothing else calls
// them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace rankhouse {

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
