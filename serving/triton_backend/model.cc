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

// Requests are answered from the host's memory: a GPU's cache would take memory there that none of them uses.
void RefuseDevice(const std::string& option) {
  Require(
      option.rfind("device", 0) != 0, "the option ", option, " is not for Triton: the backend rankhouse looks rows ",
      "up on the CPU, and would not use a GPU's cache. Leave it out (a GPU's cache serves lookup_cuda of the library)");
}

// Options come as texts: what is a JSON number, boolean or object is one, everything else the text itself. A dot leads
// into an object: redis.url=redis://host.
std::string EngineOptions(const std::string& config) {
  const Json given = Json::parse(config).value("cmdline", Json::object());
  Json options = Json::object();
  for (const auto& [key, value] : given.items()) {
    if (kTritonsOptions.count(key) > 0) continue;
    RefuseDevice(key);
    const Json parsed = Json::parse(value.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    const bool is_text = parsed.is_discarded() || parsed.is_null();
    const size_t dot = key.find('.');
    Json& owner = dot == std::string::npos ? options : options[key.substr(0, dot)];
    owner[dot == std::string::npos ? key : key.substr(dot + 1)] = is_text ? value : parsed;
  }
  return options.dump();
}

EngineHandle MakeEngine(const std::string& config) {
  rh_engine* engine = nullptr;
  CheckEngine(rh_engine_create(EngineOptions(config).c_str(), &engine));
  return EngineHandle(engine);
}

std::string Parameter(const Json& config, const char* name) {
  const Json parameters = config.value("parameters", Json::object());
  Require(parameters.contains(name), "the model's configuration lacks the parameter ", name);
  return parameters.at(name).at("string_value").get<std::string>();
}

std::unique_ptr<Step> MakeStep(const Json& config, std::shared_ptr<const ServedVersion> version) {
  const std::string step = Parameter(config, "step");
  if (step == "features") return std::make_unique<FeaturesStep>(std::move(version));
  Require(step == "dense", "the parameter step is '", step, "'; expected features or dense");
  return std::make_unique<DenseStep>(*version, Parameter(config, "onnxruntime"));
}

}  // namespace

Backend::Backend(const std::string& config) : engine_(MakeEngine(config)), metrics_(engine_.get()) {}

Model::Model(const std::string& config, rh_engine* engine) {
  const Json document = Json::parse(config);
  is_batched_ = document.value("max_batch_size", 0) > 0;
  auto version =
      std::make_shared<const ServedVersion>(engine, Parameter(document, "store"), Parameter(document, "version"));
  step_ = MakeStep(document, std::move(version));
}

}  // namespace rankhouse::triton
