// The first step: raw values to dense features and embeddings, whether these are degraded, and how many values stand in
// no vocabulary.
#ifndef RANKHOUSE_TRITON_BACKEND_FEATURES_STEP_H_
#define RANKHOUSE_TRITON_BACKEND_FEATURES_STEP_H_

#include <memory>
#include <vector>

#include "raw_batch.h"
#include "served_version.h"
#include "step.h"

namespace rankhouse::triton {

// The compiled transform, then the lookup. Ids pass from one to the other in the processor's cache; as two steps they
// would pass through Triton, which costs some 30 microseconds of a processor more for each request.
class FeaturesStep : public Step {
 public:
  // On a GPU the step asks Triton for memory of the type `wanted` for the embeddings.
  FeaturesStep(std::shared_ptr<const ServedVersion> version, TRITONSERVER_MemoryType wanted);

  const std::vector<TensorSpec>& inputs() const override { return kRawInputs; }
  void CheckKind(bool is_on_gpu) const override;
  void Run(const std::vector<Request*>& requests, Workspace* workspace) const override;

 private:
  void CheckColumns(const rh_raw_batch& batch) const;
  rh_model_input Transform(const RawBatches& raw, float* dense, Workspace* workspace) const;
  bool LookUp(const std::vector<Request*>& requests, const rh_engine_batch& batch, Workspace* workspace) const;

  std::shared_ptr<const ServedVersion> version_;
  TRITONSERVER_MemoryType wanted_;
  TransformHandle transform_;
  rh_transform_shape shape_{};
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_FEATURES_STEP_H_
