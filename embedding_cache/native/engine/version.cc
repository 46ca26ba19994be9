#include "engine/version.h"

#include <utility>

#include "format/json.h"

namespace rankhouse::engine {
namespace {

std::string Described(const std::string& store, const std::string& folder, const std::string& name,
                      const Manifest& manifest, const std::vector<Table>& tables) {
  format::Json json = {
      {"model", manifest.model}, {"name", name}, {"created_at", manifest.created_at}, {"folder", folder}};
  json["layers"] = format::Json::array();
  for (const FileRecord& layer : manifest.vocabularies) json["layers"].push_back(SharedPath(store, layer));
  json["num_dense"] = manifest.num_dense ? format::Json(*manifest.num_dense) : format::Json();
  json["tables"] = format::Json::array();
  for (const Table& table : tables) {
    json["tables"].push_back({{"name", table.record.name},
                              {"num_rows", table.record.num_rows},
                              {"dim", table.record.dim},
                              {"dtype", table.record.dtype},
                              {"rows", table.is_direct ? "direct" : "resolved"}});
  }
  json["features"] = format::Json::array();
  int64_t width = 0;
  for (const FeatureRecord& feature : manifest.features) {
    json["features"].push_back({{"name", feature.name},
                                {"table", feature.table},
                                {"combiner", feature.combiner == RH_SUM ? "sum" : "mean"},
                                {"dim", feature.dim},
                                {"column_begin", feature.column_begin}});
    width += feature.dim;
  }
  json["embeddings_dim"] = width;
  return json.dump();
}

}  // namespace

Version::Version(const std::string& store, const std::string& folder, const std::string& name, Manifest manifest,
                 std::vector<Table> tables, const Options& options, std::shared_ptr<DeviceTier> device)
    : name_(name),
      manifest_(std::move(manifest)),
      tables_(std::move(tables)),
      options_(options),
      device_(std::move(device)),
      json_(Described(store, folder, name, manifest_, tables_)),
      metrics_(static_cast<int64_t>(tables_.size())) {
  for (const FeatureRecord& feature : manifest_.features) {
    feature_tables_.push_back(feature.table);
    combiners_.push_back(feature.combiner);
  }
  for (const Table& table : tables_) {
    direct_tables_.push_back(table.direct);
    is_direct_ = is_direct_ && table.is_direct;
  }
}

}  // namespace rankhouse::engine
