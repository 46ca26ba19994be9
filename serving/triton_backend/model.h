// The backend's state: one for the process, one for each model.
#ifndef RANKHOUSE_TRITON_BACKEND_MODEL_H_
#define RANKHOUSE_TRITON_BACKEND_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
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
  // The number of the GPU that the engine keeps rows on; none: it was told of no GPU.
  std::optional<int64_t> device() const { return device_; }

 private:
  EngineHandle engine_;
  std::optional<int64_t> device_;
  MetricsMirror metrics_;  // reads the engine, so it goes first
};

// A step over a version. The parameters of the model's configuration are `store`, `version` and `step`: "features",
// which may have one more, `output_memory`, where Triton is asked to put the embeddings that are looked up on a GPU:
// "cpu" (default) or "gpu"; or "dense", with `onnxruntime`, the path of that library.
class Model {
 public:
  // Throws Failure if a parameter is missing or wrong, or the version cannot be opened.
  Model(const std::string& config, const Backend& backend);

  const Step& step() const { return *step_; }
  // Whether Triton may hand over several requests at once.
  bool is_batched() const { return is_batched_; }

  // What an instance on this GPU computes with; none is the CPU, and then NULL. Throws Failure if that is no place for
  // the step, or not where the engine keeps its rows.
  std::unique_ptr<DeviceStream> StreamOn(std::optional<int64_t> gpu) const;

 private:
  bool is_batched_;
  std::optional<int64_t> device_;  // the engine's
  std::unique_ptr<Step> step_;
};

// Answers requests; each gets a response, its own error or its outputs, and is given back.
void Execute(const Model& model, Workspace* workspace, TRITONBACKEND_ModelInstance* instance,
             TRITONBACKEND_Request** requests, uint32_t num_requests);

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_MODEL_H_
