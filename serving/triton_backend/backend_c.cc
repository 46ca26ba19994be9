// The functions that Triton calls.
#include "failure.h"
#include "model.h"

using rankhouse::triton::Backend;
using rankhouse::triton::Check;
using rankhouse::triton::Execute;
using rankhouse::triton::Failure;
using rankhouse::triton::Guard;
using rankhouse::triton::Model;
using rankhouse::triton::Text;
using rankhouse::triton::Workspace;

namespace {

// What a model instance needs at each call.
struct Instance {
  const Model* model;
  Workspace workspace;
};

std::string AsJson(TRITONSERVER_Message* message) {
  const char* json = nullptr;
  size_t size = 0;
  Check(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
  return std::string(json, size);
}

void CheckApiVersion() {
  uint32_t major = 0, minor = 0;
  Check(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != TRITONBACKEND_API_VERSION_MAJOR) {
    throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, Text("this server's interface for backends has version ", major, ".",
                                                       minor, "; expected ", TRITONBACKEND_API_VERSION_MAJOR, ".x"));
  }
}

Backend* BackendOf(TRITONBACKEND_Model* model) {
  TRITONBACKEND_Backend* backend = nullptr;
  void* state = nullptr;
  Check(TRITONBACKEND_ModelBackend(model, &backend));
  Check(TRITONBACKEND_BackendState(backend, &state));
  return static_cast<Backend*>(state);
}

// The GPU that an instance is on; none: the CPU.
std::optional<int64_t> GpuOf(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_InstanceGroupKind kind{};
  int32_t device = 0;
  Check(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  Check(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  return kind == TRITONSERVER_INSTANCEGROUPKIND_GPU ? std::optional<int64_t>(device) : std::nullopt;
}

}  // namespace

#define RANKHOUSE_EXPORT extern "C" __attribute__((visibility("default")))

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return Guard([&] {
    CheckApiVersion();
    TRITONSERVER_Message* config = nullptr;  // Triton's own
    Check(TRITONBACKEND_BackendConfig(backend, &config));
    auto state = std::make_unique<Backend>(AsJson(config));
    Check(TRITONBACKEND_BackendSetState(backend, state.get()));
    state.release();
  });
}

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return Guard([&] {
    void* state = nullptr;
    Check(TRITONBACKEND_BackendState(backend, &state));
    delete static_cast<Backend*>(state);
  });
}

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return Guard([&] {
    TRITONSERVER_Message* config = nullptr;  // ours
    Check(TRITONBACKEND_ModelConfig(model, 1, &config));
    const std::string json = AsJson(config);
    Check(TRITONSERVER_MessageDelete(config));
    auto state = std::make_unique<Model>(json, *BackendOf(model));
    Check(TRITONBACKEND_ModelSetState(model, state.get()));
    state.release();
  });
}

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return Guard([&] {
    void* state = nullptr;
    Check(TRITONBACKEND_ModelState(model, &state));
    delete static_cast<Model*>(state);
  });
}

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return Guard([&] {
    TRITONBACKEND_Model* model = nullptr;
    void* model_state = nullptr;
    Check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    Check(TRITONBACKEND_ModelState(model, &model_state));
    auto state = std::make_unique<Instance>(Instance{static_cast<const Model*>(model_state), {}});
    state->workspace.stream = state->model->StreamOn(GpuOf(instance));
    Check(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
    state.release();
  });
}

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return Guard([&] {
    void* state = nullptr;
    Check(TRITONBACKEND_ModelInstanceState(instance, &state));
    delete static_cast<Instance*>(state);
  });
}

RANKHOUSE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                                        TRITONBACKEND_Request** requests,
                                                                        const uint32_t num_requests) {
  return Guard([&] {
    void* state = nullptr;
    Check(TRITONBACKEND_ModelInstanceState(instance, &state));
    auto* own = static_cast<Instance*>(state);
    Execute(*own->model, &own->workspace, instance, requests, num_requests);
  });
}
