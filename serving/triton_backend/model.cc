#include "model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "dense_step.h"
#include "failure.h"
#include "features_step.h"

namespace rankhouse::triton {
namespace {

using Json = nlohmann::json;

// What Triton itself tells every backend.
const std::set<std::string> kTritonsOptions = {"auto-complete-config", "backend-directory", "default-max-batch-size",
                                               "min-compute-capability"};

// Options come as texts: what is a JSON number, boolean or object is one, everything else the text itself. A dot leads
// into an object: redis.url=redis://host.
Json EngineOptions(const std::string& config) {
  const Json given = Json::parse(config).value("cmdline", Json::object());
  Json options = Json::object();
  for (const auto& [key, value] : given.items()) {
    if (kTritonsOptions.count(key) > 0) continue;
    const Json parsed = Json::parse(value.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    const bool is_text = parsed.is_discarded() || parsed.is_null();
    const size_t dot = key.find('.');
    Json& owner = dot == std::string::npos ? options : options[key.substr(0, dot)];
    owner[dot == std::string::npos ? key : key.substr(dot + 1)] = is_text ? value : parsed;
  }
  return options;
}

EngineHandle MakeEngine(const std::string& config) {
  rh_engine* engine = nullptr;
  CheckEngine(rh_engine_create(EngineOptions(config).dump().c_str(), &engine));
  return EngineHandle(engine);
}

// The options are ones that the engine took.
std::optional<int64_t> DeviceOf(const std::string& config) {
  const Json options = EngineOptions(config);
  return options.contains("device") ? std::optional<int64_t>(options.at("device")) : std::nullopt;
}

std::string Parameter(const Json& config, const char* name, const char* otherwise = nullptr) {
  const Json parameters = config.value("parameters", Json::object());
  if (otherwise != nullptr && !parameters.contains(name)) return otherwise;
  Require(parameters.contains(name), "the model's configuration lacks the parameter ", name);
  return parameters.at(name).at("string_value").get<std::string>();
}

// What memory to ask Triton for. On the CPU, copies from a GPU are fastest to pinned memory.
TRITONSERVER_MemoryType OutputMemoryType(const Json& config) {
  const std::string memory = Parameter(config, "output_memory", "cpu");
  if (memory == "cpu") return TRITONSERVER_MEMORY_CPU_PINNED;
  Require(memory == "gpu", "the parameter output_memory is '", memory, "'; expected cpu or gpu");
  return TRITONSERVER_MEMORY_GPU;
}

std::unique_ptr<Step> MakeStep(const Json& config, std::shared_ptr<const ServedVersion> version) {
  const std::string step = Parameter(config, "step");
  if (step == "features") {
    return std::make_unique<FeaturesStep>(std::move(version), OutputMemoryType(config));
  }
  Require(step == "dense", "the parameter step is '", step, "'; expected features or dense");
  return std::make_unique<DenseStep>(*version, Parameter(config, "onnxruntime"));
}

}  // namespace

Backend::Backend(const std::string& config)
    : engine_(MakeEngine(config)), device_(DeviceOf(config)), metrics_(engine_.get()) {}

Model::Model(const std::string& config, const Backend& backend) : device_(backend.device()) {
  const Json document = Json::parse(config);
  is_batched_ = document.value("max_batch_size", 0) > 0;
  auto version = std::make_shared<const ServedVersion>(backend.engine(), Parameter(document, "store"),
                                                       Parameter(document, "version"));
  step_ = MakeStep(document, std::move(version));
}

std::unique_ptr<DeviceStream> Model::StreamOn(std::optional<int64_t> gpu) const {
  step_->CheckKind(gpu.has_value());
  if (!gpu) return nullptr;
  Require(device_.has_value(), "the model's instances are on GPU ", *gpu,
          " (KIND_GPU), but the engine has no GPU: start ", "Triton with --backend-config=rankhouse,device=", *gpu,
          ", or set their kind to KIND_CPU");
  Require(*device_ == *gpu, "the model's instances are on GPU ", *gpu, ", but the engine's rows are on GPU ", *device_,
          ": set gpus: [ ", *device_, " ] in the model's instance_group");
  return std::make_unique<DeviceStream>(*gpu);
}

}  // namespace rankhouse::triton
