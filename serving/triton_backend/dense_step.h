// The last step: dense features and embeddings to scores.
#ifndef RANKHOUSE_TRITON_BACKEND_DENSE_STEP_H_
#define RANKHOUSE_TRITON_BACKEND_DENSE_STEP_H_

#include <memory>
#include <string>
#include <vector>

#include "onnx_runtime.h"
#include "served_version.h"
#include "step.h"

namespace rankhouse::triton {

// Runs a version's dense part in ONNX Runtime. Rows of several requests are joined to one run as long as they are few:
// a run costs more than a few rows do, and copying many rows costs more than a run.
class DenseStep : public Step {
 public:
  // onnxruntime: the path of the library.
  DenseStep(const ServedVersion& version, const std::string& onnxruntime);

  const std::vector<TensorSpec>& inputs() const override { return inputs_; }
  void CheckKind(bool is_on_gpu) const override;
  void Run(const std::vector<Request*>& requests, Workspace* workspace) const override;

 private:
  // Scores requests [begin, end).
  void Score(Request* const* begin, Request* const* end, float* scores, Workspace* workspace) const;
  void Check(const Request& request) const;

  const std::vector<TensorSpec> inputs_;
  const int64_t widths_[2];
  DensePart part_;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_DENSE_STEP_H_
