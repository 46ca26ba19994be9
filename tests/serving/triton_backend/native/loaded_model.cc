#include "loaded_model.h"

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

void Expect(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::abort();
}

void Expect(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "%s\n", error->message.c_str());
  std::abort();
}

TRITONBACKEND_Request RawRequest() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string bytes = "osloromeabbccccparis";
  TRITONBACKEND_Request request;
  request.inputs["float_values"] = InputOf<double>(TRITONSERVER_TYPE_FP64, {2, 2}, {nan, 2.5, 0, nan});
  request.inputs["int_values"] = InputOf<int64_t>(TRITONSERVER_TYPE_INT64, {4}, {7, -3, 5, int64_t{1} << 40});
  request.inputs["int_lengths"] = InputOf<int32_t>(TRITONSERVER_TYPE_INT32, {2, 2}, {1, 2, 0, 1});
  request.inputs["text_bytes"] =
      InputOf<char>(TRITONSERVER_TYPE_UINT8, {static_cast<int64_t>(bytes.size())}, {bytes.begin(), bytes.end()});
  request.inputs["text_sizes"] = InputOf<int32_t>(TRITONSERVER_TYPE_INT32, {6}, {4, 4, 1, 2, 4, 5});
  request.inputs["text_lengths"] = InputOf<int32_t>(TRITONSERVER_TYPE_INT32, {2, 3}, {1, 1, 2, 0, 1, 1});
  return request;
}

TRITONBACKEND_Request AsElement(TRITONBACKEND_Request request) {
  for (auto& [name, input] : request.inputs) input.shape.insert(input.shape.begin(), 1);
  return request;
}

std::vector<float> Embeddings(const TRITONBACKEND_Request& answered) {
  Expect(!answered.has_failed, "an answer, and not: " + answered.error.message);
  return answered.Elements<float>("embeddings");
}

void ExpectRefusal(const TRITONBACKEND_Request& answered, const std::string& text, TRITONSERVER_Error_Code code) {
  Expect(answered.has_failed && answered.error.code == code && answered.error.message.find(text) != std::string::npos,
         "a refusal by '" + text + "': " + (answered.has_failed ? answered.error.message : "an answer"));
}

std::string Config(const std::map<std::string, std::string>& parameters, int max_batch_size) {
  std::string text;
  for (const auto& [name, value] : parameters) {
    text += (text.empty() ? "\"" : ", \"") + name + "\": {\"string_value\": \"" + value + "\"}";
  }
  return "{\"max_batch_size\": " + std::to_string(max_batch_size) + ", \"parameters\": {" + text + "}}";
}

Model::Model(TRITONBACKEND_Backend* backend, const std::string& config, InstancePlace place)
    : model_{backend, config}, instance_{&model_, nullptr, place.kind, place.device} {
  Expect(TRITONBACKEND_ModelInitialize(&model_));
  Expect(TRITONBACKEND_ModelInstanceInitialize(&instance_));
}

Model::~Model() {
  Expect(TRITONBACKEND_ModelInstanceFinalize(&instance_));
  Expect(TRITONBACKEND_ModelFinalize(&model_));
}

void Model::Execute(Requests* requests) {
  std::vector<TRITONBACKEND_Request*> batch;
  for (TRITONBACKEND_Request& request : *requests) batch.push_back(&request);
  const uint64_t num_counted = instance_.num_succeeded + instance_.num_failed;
  Expect(TRITONBACKEND_ModelInstanceExecute(&instance_, batch.data(), static_cast<uint32_t>(batch.size())));
  for (const TRITONBACKEND_Request& request : *requests) {
    Expect(request.num_responses == 1 && request.num_releases == 1, "each request is answered and given back once");
  }
  Expect(instance_.num_succeeded + instance_.num_failed == num_counted + batch.size(), "each request is counted");
}

TRITONBACKEND_Request Model::Execute(TRITONBACKEND_Request request) {
  Requests one{std::move(request)};
  Execute(&one);
  return std::move(one[0]);
}

std::string WhyNotLoaded(TRITONBACKEND_Backend* backend, const std::string& config, InstancePlace place) {
  TRITONBACKEND_Model model{backend, config};
  TRITONBACKEND_ModelInstance instance{&model, nullptr, place.kind, place.device};
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInitialize(&model);
  const bool has_model = error == nullptr;
  if (has_model) error = TRITONBACKEND_ModelInstanceInitialize(&instance);
  const std::string why = error == nullptr ? "" : error->message;
  Expect((error == nullptr) == (instance.state != nullptr), "what was refused leaves nothing behind");
  TRITONSERVER_ErrorDelete(error);
  if (instance.state != nullptr) Expect(TRITONBACKEND_ModelInstanceFinalize(&instance));
  if (has_model) Expect(TRITONBACKEND_ModelFinalize(&model));
  return why;
}
