// The backend's state: one for the process, one for each model.
#ifndef RANKHOUSE_TRITON_BACKEND_MODEL_H_
#define RANKHOUSE_TRITON_BACKEND_MODEL_H_

#include <memory>
#include <string>

#include "metrics_mirror.h"
#include "served_version.h"
#include "step.h"

namespace rankhouse::triton {

struct DestroyEngine {
  void operator()(rh_engine* engine) const { rh_engine_destroy(engine); }
};
using EngineHandle = std::unique_ptr<rh_engine, DestroyEngine>;

// The one engine of the process, which all models share, so that versions share rows.
class Backend {
 public:
  // `config` is Triton's: what was given as --backend-config=rankhouse,<option>=<value>. Throws Failure if an option is
  // unknown or has a value that the engine does not take.
  explicit Backend(const std::string& config);

  rh_engine* engine() const { return engine_.get(); }

 private:
  EngineHandle engine_;
  MetricsMirror metrics_;  // reads the engine, so it goes first
};

// A step over a version. The parameters of the model's configuration are `store`, `version` and `step`: "features" or
// "dense", which has one more, `onnxruntime`, the path of that library.
class Model {
 public:
  // Throws Failure if a parameter is missing or wrong, or the version cannot be opened.
  Model(const std::string& config, rh_engine* engine);

  const Step& step() const { return *step_; }
  // Whether Triton may hand over several requests at once.
  bool is_batched() const { return is_batched_; }

 private:
  bool is_batched_;
  std::unique_ptr<Step> step_;
};

// Answers requests; each gets a response, its own error or its outputs, and is given back.
void Execute(const Model& model, Workspace* workspace, TRITONBACKEND_ModelInstance* instance,
             TRITONBACKEND_Request** requests, uint32_t num_requests);

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_MODEL_H_
