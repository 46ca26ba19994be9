#include "stub_server.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>

struct TRITONBACKEND_Response {
  TRITONBACKEND_Request* request;
};
struct TRITONSERVER_Metric {
  std::string name;
  std::string labels;
  double value = 0;
};
struct TRITONSERVER_MetricFamily {
  std::string name;
};
struct TRITONSERVER_Parameter {
  std::string text;
};

namespace {

std::atomic<int> num_metric_objects{0};
std::atomic<int> num_failing_metrics{0};
std::mutex mutex;  // guards what follows
std::set<TRITONSERVER_Metric*> metrics;
std::vector<std::string> logged;

TRITONSERVER_Error* ErrorOf(TRITONSERVER_Error_Code code, const char* message) {
  return new TRITONSERVER_Error{code, message};
}

}  // namespace

int NumMetricObjects() { return num_metric_objects; }

double MetricSum(const std::string& name, const std::string& label) {
  const std::lock_guard<std::mutex> lock(mutex);
  double sum = 0;
  for (const TRITONSERVER_Metric* metric : metrics) {
    if (metric->name == name && metric->labels.find(label) != std::string::npos) sum += metric->value;
  }
  return sum;
}

void FailMetrics(int count) { num_failing_metrics = count; }

int NumLogged(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int>(std::count_if(logged.begin(), logged.end(),
                                        [&](const std::string& line) { return line.find(text) != std::string::npos; }));
}

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
  return ErrorOf(code, message);
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { delete error; }
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) { return error->code; }
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->message.c_str(); }
const char* TRITONSERVER_DataTypeString(TRITONSERVER_DataType type) {
  return type == TRITONSERVER_TYPE_FP32 ? "FP32" : type == TRITONSERVER_TYPE_INT32 ? "INT32" : "other";
}
TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char*, int, const char* message) {
  const std::lock_guard<std::mutex> lock(mutex);
  logged.emplace_back(message);
  return nullptr;
}

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

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char* name, TRITONSERVER_ParameterType, const void* value) {
  return new TRITONSERVER_Parameter{std::string(name) + "=\"" + static_cast<const char*>(value) + "\""};
}
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) { delete parameter; }
TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily** family, TRITONSERVER_MetricKind,
                                                 const char* name, const char*) {
  ++num_metric_objects;
  *family = new TRITONSERVER_MetricFamily{name};
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
  --num_metric_objects;
  delete family;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricNew(TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family,
                                           const TRITONSERVER_Parameter** labels, uint64_t num_labels) {
  if (num_failing_metrics > 0 && num_failing_metrics-- > 0) {
    return ErrorOf(TRITONSERVER_ERROR_INTERNAL, "no room for a metric");
  }
  ++num_metric_objects;
  *metric = new TRITONSERVER_Metric{family->name, {}};
  for (uint64_t i = 0; i < num_labels; ++i) (*metric)->labels += labels[i]->text + ",";
  const std::lock_guard<std::mutex> lock(mutex);
  metrics.insert(*metric);
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
  --num_metric_objects;
  const std::lock_guard<std::mutex> lock(mutex);
  metrics.erase(metric);
  delete metric;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
  const std::lock_guard<std::mutex> lock(mutex);
  metric->value += value;
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric* metric, double value) {
  const std::lock_guard<std::mutex> lock(mutex);
  metric->value = value;
  return nullptr;
}

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
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance* instance,
                                                    TRITONSERVER_InstanceGroupKind* kind) {
  *kind = instance->kind;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance* instance, int32_t* device_id) {
  *device_id = instance->device;
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
  **output = {{shape, shape + num_dims}, {}, {}, {}, request};
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer, uint64_t num_bytes,
                                               TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  if (output->request->gives_no_output) return ErrorOf(TRITONSERVER_ERROR_INTERNAL, "no memory for the output");
  output->bytes = std::vector<std::byte>(output->request->output_shift + num_bytes);
  *buffer = output->bytes.data() + output->request->output_shift;
  output->wanted = *memory_type;
  const OutputPlace& place = output->request->output_place;
  if (!place.is_as_wanted) {
    *memory_type = place.type;
    *memory_type_id = place.device;
  }
  output->place = *memory_type;
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
