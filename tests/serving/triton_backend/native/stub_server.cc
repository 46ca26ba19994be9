#include "stub_server.h"

#include <atomic>
#include <utility>

struct TRITONBACKEND_Response {
  TRITONBACKEND_Request* request;
};
struct TRITONSERVER_Metric {};
struct TRITONSERVER_MetricFamily {};
struct TRITONSERVER_Parameter {};

namespace {

std::atomic<int> num_metric_objects{0};

TRITONSERVER_Error* ErrorOf(TRITONSERVER_Error_Code code, const char* message) {
  return new TRITONSERVER_Error{code, message};
}

template <typename Object>
TRITONSERVER_Error* Give(Object** out) {
  ++num_metric_objects;
  *out = new Object;
  return nullptr;
}

template <typename Object>
TRITONSERVER_Error* Take(Object* object) {
  --num_metric_objects;
  delete object;
  return nullptr;
}

}  // namespace

int NumMetricObjects() { return num_metric_objects; }

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  return ErrorOf(code, message);
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { delete error; }
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) { return error->code; }
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->message.c_str(); }
const char* TRITONSERVER_DataTypeString(TRITONSERVER_DataType type) {
  return type == TRITONSERVER_TYPE_FP32 ? "FP32" : type == TRITONSERVER_TYPE_INT32 ? "INT32" : "other";
}
TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char*, int, const char*) { return nullptr; }

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** json,
                                                        size_t* size) {
  *json = message->json.data();
  *size = message->json.size();
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  delete message;
  return nullptr;
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char*, TRITONSERVER_ParameterType, const void*) {
  return new TRITONSERVER_Parameter;
}
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { delete parameter; }
TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily** family, TRITONSERVER_MetricKind,
                                                 const char*, const char*) {
  return Give(family);
}
TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) { return Take(family); }
TRITONSERVER_Error* TRITONSERVER_MetricNew(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily*,
                                           const TRITONSERVER_Parameter**, uint64_t) {
  return Give(metric);
}
TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) { return Take(metric); }
TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric*, double) { return nullptr; }
TRITONSERVER_Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric*, double) { return nullptr; }

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = TRITONBACKEND_API_VERSION_MAJOR;
  *minor = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend* backend, TRITONSERVER_Message** config) {
  *config = &backend->config;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendState(TRITONBACKEND_Backend* backend, void** state) {
  *state = backend->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend* backend, void* state) {
  backend->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t, TRITONSERVER_Message** config) {
  *config = new TRITONSERVER_Message{model->config};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelBackend(TRITONBACKEND_Model* model, TRITONBACKEND_Backend** backend) {
  *backend = model->backend;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  *state = model->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  model->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance,
                                                     TRITONBACKEND_Model** model) {
  *model = instance->model;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  *state = instance->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
  instance->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance* instance,
                                                                TRITONBACKEND_Request*, bool success, uint64_t,
                                                                uint64_t, uint64_t, uint64_t) {
  ++(success ? instance->num_succeeded : instance->num_failed);
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance* instance, uint64_t,
                                                                     uint64_t, uint64_t, uint64_t, uint64_t) {
  ++instance->num_executions;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  *is_cancelled = request->is_cancelled;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input) {
  const auto found = request->inputs.find(name);
  if (found == request->inputs.end()) return ErrorOf(TRITONSERVER_ERROR_INVALID_ARG, "no such input");
  *input = &found->second;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t) {
  ++request->num_releases;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char**, TRITONSERVER_DataType* type,
                                                  const int64_t** shape, uint32_t* num_dims, uint64_t* num_bytes,
                                                  uint32_t* num_buffers) {
  *type = input->type;
  *shape = input->shape.data();
  *num_dims = static_cast<uint32_t>(input->shape.size());
  *num_bytes = input->num_bytes;
  *num_buffers = static_cast<uint32_t>(input->pieces.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* num_bytes, TRITONSERVER_MemoryType* memory_type,
                                              int64_t* memory_type_id) {
  const Piece& piece = input->pieces.at(index);
  *buffer = piece.bytes.data() + piece.begin;
  *num_bytes = piece.bytes.size() - piece.begin;
  *memory_type = input->place;
  *memory_type_id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  *response = new TRITONBACKEND_Response{request};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                                                 const char* name, TRITONSERVER_DataType, const int64_t* shape,
                                                 uint32_t num_dims) {
  TRITONBACKEND_Request* request = response->request;
  if (request->outputs.empty()) request->on_output();
  *output = &request->outputs[name];
  **output = {{shape, shape + num_dims}, {}, request};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer, uint64_t num_bytes,
                                               TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  if (output->request->gives_no_output) return ErrorOf(TRITONSERVER_ERROR_INTERNAL, "no memory for the output");
  output->bytes = std::vector<std::byte>(output->request->output_shift + num_bytes);
  *buffer = output->bytes.data() + output->request->output_shift;
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t, TRITONSERVER_Error* error) {
  TRITONBACKEND_Request* request = response->request;
  ++request->num_responses;
  request->has_failed = error != nullptr;
  if (error != nullptr) request->error = *error;
  delete response;
  return nullptr;
}
