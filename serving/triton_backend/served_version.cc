#include "served_version.h"

#include <nlohmann/json.hpp>

#include "failure.h"

namespace rankhouse::triton {

ServedVersion::ServedVersion(rh_engine* engine, const std::string& store, const std::string& name) {
  rh_engine_version* version = nullptr;
  CheckEngine(rh_engine_open(engine, store.c_str(), name.c_str(), /*verify=*/0, &version));
  version_.reset(version);
  const char* text = nullptr;
  CheckEngine(rh_engine_version_json(version, &text));
  const auto json = nlohmann::json::parse(text);
  folder_ = json.at("folder");
  layers_ = json.at("layers").get<std::vector<std::string>>();
  for (const auto& feature : json.at("features")) column_begins_.push_back(feature.at("column_begin"));
  num_columns_ = json.at("embeddings_dim");
  if (!json.at("num_dense").is_null()) num_dense_ = json.at("num_dense");
}

TransformHandle ServedVersion::OpenTransform() const {
  std::vector<const char*> layers;
  for (const std::string& layer : layers_) layers.push_back(layer.c_str());
  rh_transform* transform = nullptr;
  CheckEngine(rh_transform_open(folder_.c_str(), layers.data(), static_cast<int64_t>(layers.size()), &transform));
  return TransformHandle(transform);
}

std::vector<rh_feature_rows> ServedVersion::Columns(float* embeddings) const {
  std::vector<rh_feature_rows> columns;
  columns.reserve(column_begins_.size());
  for (const int64_t begin : column_begins_) columns.push_back({embeddings + begin, num_columns_});
  return columns;
}

bool ServedVersion::Lookup(const rh_engine_batch& batch, float* embeddings) const {
  rh_engine_answer answer{};
  CheckEngine(rh_engine_lookup(version_.get(), &batch, Columns(embeddings).data(), &answer, &kOneThread));
  return answer.degraded != 0;
}

bool ServedVersion::LookupOnDevice(const rh_engine_batch& batch, float* embeddings, void* stream) const {
  rh_engine_answer answer{};
  const std::vector<rh_feature_rows> columns = Columns(embeddings);
  CheckEngine(rh_engine_lookup_cuda(version_.get(), &batch, columns.data(), &answer, &kOneThread, stream));
  return answer.degraded != 0;
}

}  // namespace rankhouse::triton
