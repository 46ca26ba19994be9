// The signatures of the TensorFlow ops of unique keys and vocabularies. kernels/tf_ops/vocabulary.py wraps them;
// nothing else calls them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rankhouse {
namespace {

using tensorflow::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

Status UniqueShape(InferenceContext* context) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &keys));
  const DimensionHandle num_unique = context->UnknownDim();
  context->set_output(0, context->Vector(num_unique));
  context->set_output(1, keys);
  context->set_output(2, context->Vector(num_unique));
  return tensorflow::OkStatus();
}

Status LookupShape(InferenceContext* context) {
  context->set_output(0, context->input(1));
  return tensorflow::OkStatus();
}

// All outputs are vectors of one length.
Status VectorsShape(InferenceContext* context) {
  const DimensionHandle length = context->UnknownDim();
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->Vector(length));
  return tensorflow::OkStatus();
}

Status ObserveShape(InferenceContext* context) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &keys));
  if (context->num_inputs() == 4) TF_RETURN_IF_ERROR(context->Merge(keys, context->input(3), &keys));
  return VectorsShape(context);
}

Status ImportShape(InferenceContext* context) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &keys));
  for (int i = 2; i < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(context->Merge(keys, context->input(i), &keys));
  return tensorflow::OkStatus();
}

}  // namespace

REGISTER_OP("RankhouseUnique")
    .Input("keys: int64")
    .Output("unique: int64")
    .Output("inverse: int64")
    .Output("counts: int64")
    .SetShapeFn(UniqueShape)
    .Doc("rh_unique.");

REGISTER_OP("RankhouseVocabulary")
    .Output("vocabulary: resource")
    .Attr("first_id: int")
    .Attr("max_keys: int")
    .Attr("unknown_id: int")
    .Attr("min_count: int")
    .Attr("max_candidates: int")
    .Attr("eviction: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("A new rh_vocabulary, which lives as long as its handle.");

REGISTER_OP("RankhouseVocabularyLookup")
    .Input("vocabulary: resource")
    .Input("keys: int64")
    .Output("ids: int64")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc("rh_vocabulary_lookup of keys of any shape.");

REGISTER_OP("RankhouseVocabularyObserve")
    .Input("vocabulary: resource")
    .Input("step: int64")
    .Input("keys: int64")
    .Input("counts: num_counts * int64")
    .Output("evicted_keys: int64")
    .Output("evicted_ids: int64")
    .Attr("num_counts: int >= 0")
    .SetIsStateful()
    .SetShapeFn(ObserveShape)
    .Doc("rh_vocabulary_observe; counts are one tensor, or none.");

REGISTER_OP("RankhouseVocabularyEvict")
    .Input("vocabulary: resource")
    .Input("min_step: int64")
    .Input("min_count: int64")
    .Output("evicted_keys: int64")
    .Output("evicted_ids: int64")
    .SetIsStateful()
    .SetShapeFn(VectorsShape)
    .Doc("rh_vocabulary_evict.");

REGISTER_OP("RankhouseVocabularySize")
    .Input("vocabulary: resource")
    .Output("size: int64")
    .Output("num_entries: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Scalar());
      return tensorflow::OkStatus();
    })
    .Doc("rh_vocabulary_size and rh_vocabulary_num_entries.");

REGISTER_OP("RankhouseVocabularyExport")
    .Input("vocabulary: resource")
    .Output("keys: int64")
    .Output("ids: int64")
    .Output("counts: int64")
    .Output("last_steps: int64")
    .SetIsStateful()
    .SetShapeFn(VectorsShape)
    .Doc("rh_vocabulary_export.");

REGISTER_OP("RankhouseVocabularyImport")
    .Input("vocabulary: resource")
    .Input("keys: int64")
    .Input("ids: int64")
    .Input("counts: int64")
    .Input("last_steps: int64")
    .SetIsStateful()
    .SetShapeFn(ImportShape)
    .Doc("rh_vocabulary_import.");

}  // namespace rankhouse
